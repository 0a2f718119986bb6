// River on PostgreSQL.
//
// Variants: the number of workers of one process. Fetching is as eager as River allows; jobs are completed in batches, which it does by itself.
// "bulk" is InsertMany, which answers what it inserted; "copy" is InsertManyFast, which cannot.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const (
	batch   = 5_000
	sending = 32 // connections
	working = 8
)

type noop struct{}

func (noop) Kind() string { return "noop" }

type late struct {
	Sent int64 `json:"sent"`
}

func (late) Kind() string { return "late" }

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func connect(ctx context.Context, most int32) *pgxpool.Pool {
	config, err := pgxpool.ParseConfig(os.Getenv("BENCH_STORE"))
	check(err)
	config.MaxConns = most
	pool, err := pgxpool.NewWithConfig(ctx, config)
	check(err)
	return pool
}

func settings(config *river.Config) *river.Config {
	config.Logger = quiet
	config.FetchCooldown = time.Millisecond
	config.FetchPollInterval = 20 * time.Millisecond
	return config
}

func open(ctx context.Context) side {
	pool := connect(ctx, sending)
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: quiet})
	check(err)
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	check(err)
	client, err := river.NewClient(riverpgxv5.New(pool), settings(&river.Config{}))
	check(err)
	insert := func(args river.JobArgs) {
		_, err := client.Insert(ctx, args, nil)
		check(err)
	}
	send := func() { insert(noop{}) }
	return side{
		kinds: []string{"single", "concurrent", "bulk", "copy"},
		ways: map[string]func(int){
			"single":     one(send),
			"concurrent": many(send),
			"bulk":       batches(func(jobs []river.InsertManyParams) error { _, err := client.InsertMany(ctx, jobs); return err }),
			"copy":       batches(func(jobs []river.InsertManyParams) error { _, err := client.InsertManyFast(ctx, jobs); return err }),
		},
		fill: "copy",
		durability: func() string {
			var commit, flush string
			check(pool.QueryRow(ctx, "SELECT current_setting('synchronous_commit'), current_setting('fsync')").Scan(&commit, &flush))
			return fmt.Sprintf("synchronous_commit=%s, fsync=%s; %s workers a process", commit, flush, os.Getenv("BENCH_VARIANT"))
		},
		modules: map[string]string{"github.com/riverqueue/river": "river", "github.com/jackc/pgx/v5": "pgx"},
		late:    func(sent int64) { insert(late{sent}) },
		close:   pool.Close,
	}
}

func batches(send func([]river.InsertManyParams) error) func(int) {
	return func(n int) {
		for start := 0; start < n; start += batch {
			jobs := make([]river.InsertManyParams, min(batch, n-start))
			for i := range jobs {
				jobs[i].Args = noop{}
			}
			check(send(jobs))
		}
	}
}

func work(ctx context.Context, mine taken) func() {
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(context.Context, *river.Job[noop]) error { mine.hit(); return nil }))
	river.AddWorker(workers, river.WorkFunc(func(_ context.Context, job *river.Job[late]) error { mine.late(job.Args.Sent); return nil }))
	queues := map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: number(os.Getenv("BENCH_VARIANT"))}}
	client, err := river.NewClient(riverpgxv5.New(connect(ctx, working)), settings(&river.Config{Workers: workers, Queues: queues}))
	check(err)
	check(client.Start(ctx))
	return func() { check(client.Stop(ctx)) }
}

func main() { drive(open, work) }

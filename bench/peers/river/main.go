// River on PostgreSQL. It answers the commands of drive.py by itself, because nothing of Python lives in its environment.
//
//	river describe | submit KIND N | fill N | release N | late N SECONDS | worker SLOT
//
// Variants: the number of workers of one process. Fetching is as eager as River allows; jobs are completed in batches, which it does by itself.
// "bulk" is InsertMany, which answers what it inserted; "copy" is InsertManyFast, which cannot.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const (
	batch    = 5_000
	callers  = 64
	warmUp   = 10
	sending  = 32 // connections
	working  = 8
	patience = 10 * time.Second
)

type answer = map[string]any

type noop struct{}

func (noop) Kind() string { return "noop" }

type late struct {
	Sent int64 `json:"sent"`
}

func (late) Kind() string { return "late" }

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	check(err)
	return n
}

// side is River as the driver sees it: a client that submits only.
type side struct {
	ctx    context.Context
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
}

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

func open(ctx context.Context) *side {
	pool := connect(ctx, sending)
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: quiet})
	check(err)
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	check(err)
	client, err := river.NewClient(riverpgxv5.New(pool), settings(&river.Config{}))
	check(err)
	return &side{ctx, pool, client}
}

func (s *side) insert(args river.JobArgs) {
	_, err := s.client.Insert(s.ctx, args, nil)
	check(err)
}

func (s *side) single(n int) {
	for range n {
		s.insert(noop{})
	}
}

func (s *side) concurrent(n int) {
	var group sync.WaitGroup
	var taken atomic.Int64
	for range callers {
		group.Go(func() {
			for taken.Add(1) <= int64(n) {
				s.insert(noop{})
			}
		})
	}
	group.Wait()
}

func batches(n int, send func([]river.InsertManyParams) error) {
	for start := 0; start < n; start += batch {
		jobs := make([]river.InsertManyParams, min(batch, n-start))
		for i := range jobs {
			jobs[i].Args = noop{}
		}
		check(send(jobs))
	}
}

func (s *side) bulk(n int) {
	batches(n, func(jobs []river.InsertManyParams) error { _, err := s.client.InsertMany(s.ctx, jobs); return err })
}

func (s *side) copy(n int) {
	batches(n, func(jobs []river.InsertManyParams) error { _, err := s.client.InsertManyFast(s.ctx, jobs); return err })
}

func (s *side) describe() answer {
	var commit, flush, workers string
	check(s.pool.QueryRow(s.ctx, "SELECT current_setting('synchronous_commit'), current_setting('fsync')").Scan(&commit, &flush))
	program, err := os.Executable()
	check(err)
	workers = os.Getenv("BENCH_VARIANT")
	one := []string{program, "worker", "0"}
	return answer{
		"versions":   versions(),
		"durability": fmt.Sprintf("synchronous_commit=%s, fsync=%s; %s workers a process", commit, flush, workers),
		"kinds":      []string{"single", "concurrent", "bulk", "copy"},
		"workers":    answer{"1": [][]string{one}, "2": [][]string{one, {program, "worker", "1"}}},
	}
}

func versions() map[string]string {
	found := map[string]string{"go": strings.TrimPrefix(runtime.Version(), "go")}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			switch module.Path {
			case "github.com/riverqueue/river":
				found["river"] = strings.TrimPrefix(module.Version, "v")
			case "github.com/jackc/pgx/v5":
				found["pgx"] = strings.TrimPrefix(module.Version, "v")
			}
		}
	}
	return found
}

func (s *side) submit(kind string, n int) answer {
	way := map[string]func(int){"single": s.single, "concurrent": s.concurrent, "bulk": s.bulk, "copy": s.copy}[kind]
	way(warmUp)
	began := time.Now()
	way(n)
	return answer{"seconds": time.Since(began).Seconds()}
}

// late sends one at a time, each when the one before has started, with a pause of a length by chance; the first only shows that the worker is there.
func (s *side) late(n int, seconds float64) answer {
	counter := attach()
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	submits := []float64{}
	sent := 0
	for sent <= n && (sent < 2 || time.Now().Before(end)) {
		began := monotonic()
		s.insert(late{began})
		submits = append(submits, float64(monotonic()-began)/1e6)
		sent++
		if !counter.started(int64(sent)) {
			break
		}
		time.Sleep(time.Duration((5 + 25*rand.Float64()) * float64(time.Millisecond)))
	}
	return answer{"milliseconds": counter.milliseconds(sent)[1:], "submits": submits[1:]}
}

func work(ctx context.Context, slot int) {
	mine := attach().take(slot)
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(func(context.Context, *river.Job[noop]) error { mine.hit(); return nil }))
	river.AddWorker(workers, river.WorkFunc(func(_ context.Context, job *river.Job[late]) error { mine.late(job.Args.Sent); return nil }))
	queues := map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: number(os.Getenv("BENCH_VARIANT"))}}
	client, err := river.NewClient(riverpgxv5.New(connect(ctx, working)), settings(&river.Config{Workers: workers, Queues: queues}))
	check(err)
	check(client.Start(ctx))
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	<-stop
	check(client.Stop(ctx))
}

func main() {
	ctx := context.Background()
	if len(os.Args) < 2 {
		check(fmt.Errorf("river: a command is missing; describe, submit, fill, release, late or worker"))
	}
	command, rest := os.Args[1], os.Args[2:]
	if command == "worker" {
		work(ctx, number(rest[0]))
		return
	}
	s := open(ctx)
	defer s.pool.Close()
	told := answer{}
	switch command {
	case "describe":
		told = s.describe()
	case "submit":
		told = s.submit(rest[0], number(rest[1]))
	case "fill":
		s.copy(number(rest[0]))
	case "release": // it has begun with its first process
	case "late":
		seconds, err := strconv.ParseFloat(rest[1], 64)
		check(err)
		told = s.late(number(rest[0]), seconds)
	default:
		check(fmt.Errorf("river: %s is no command", command))
	}
	check(json.NewEncoder(os.Stdout).Encode(told))
}

// asynq on Redis.
//
// Variants: "servers x concurrency" of one process; one server fetches one task at a time, so several of them in a process are faster than one.
// What has ended is not kept, which is its default. It has no way of its own to submit many at once.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/hibiken/asynq"
)

const checking = 5 * time.Millisecond // how soon an idle server looks again

func store() asynq.RedisClientOpt {
	found, err := asynq.ParseRedisURI(os.Getenv("BENCH_STORE"))
	check(err)
	return found.(asynq.RedisClientOpt)
}

func variant() (servers, concurrency int) {
	first, second, _ := strings.Cut(os.Getenv("BENCH_VARIANT"), "x")
	return number(first), number(second)
}

func open(context.Context) side {
	options := store()
	options.PoolSize = callers
	client := asynq.NewClient(options)
	enqueue := func(kind string, payload []byte) {
		_, err := client.Enqueue(asynq.NewTask(kind, payload))
		check(err)
	}
	send := func() { enqueue("noop", nil) }
	return side{
		kinds: []string{"single", "concurrent"},
		ways:  map[string]func(int){"single": one(send), "concurrent": many(send)},
		fill:  "concurrent",
		durability: func() string {
			servers, concurrency := variant()
			return fmt.Sprintf("as the server; %d servers a process, %d at once each", servers, concurrency)
		},
		modules: map[string]string{"github.com/hibiken/asynq": "asynq", "github.com/redis/go-redis/v9": "go-redis"},
		late:    func(sent int64) { enqueue("late", binary.LittleEndian.AppendUint64(nil, uint64(sent))) },
		close:   func() { check(client.Close()) },
	}
}

func work(_ context.Context, mine taken) func() {
	mux := asynq.NewServeMux()
	mux.HandleFunc("noop", func(context.Context, *asynq.Task) error { mine.hit(); return nil })
	mux.HandleFunc("late", func(_ context.Context, task *asynq.Task) error {
		mine.late(int64(binary.LittleEndian.Uint64(task.Payload())))
		return nil
	})
	servers, concurrency := variant()
	started := make([]*asynq.Server, servers)
	for i := range started {
		config := asynq.Config{Concurrency: concurrency, LogLevel: asynq.FatalLevel, TaskCheckInterval: checking}
		started[i] = asynq.NewServer(store(), config)
		check(started[i].Start(mux))
	}
	return func() {
		for _, server := range started {
			server.Shutdown()
		}
	}
}

func main() { drive(open, work) }

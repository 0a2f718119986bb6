package main

import (
	"context"
	"encoding/json"
	"fmt"
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
)

// The commands of drive.py, for a system in Go, because nothing of Python lives in its environment:
//
//	describe | submit KIND N | fill N | release N | left | late N SECONDS | worker SLOT

const (
	callers  = 64
	warmUp   = 10
	patience = 10 * time.Second
)

type answer = map[string]any

// side is a system that submits only.
type side struct {
	kinds      []string // its ways to submit, in the order of drive.py
	ways       map[string]func(n int)
	fill       string // the way that is fastest
	durability func() string
	modules    map[string]string // whose versions are shown, by their names there
	late       func(sent int64)
	close      func()
}

// drive does what the command line says; work starts a worker and answers how it is stopped.
func drive(open func(context.Context) side, work func(context.Context, taken) (stop func())) {
	ctx := context.Background()
	if len(os.Args) < 2 {
		check(fmt.Errorf("a command is missing: describe, submit, fill, release, late or worker"))
	}
	command, rest := os.Args[1], os.Args[2:]
	if command == "worker" {
		stop := work(ctx, attach().take(number(rest[0])))
		stopped := make(chan os.Signal, 1)
		signal.Notify(stopped, syscall.SIGTERM, syscall.SIGINT)
		<-stopped
		stop()
		return
	}
	s := open(ctx)
	defer s.close()
	told := answer{}
	switch command {
	case "describe":
		told = s.describe()
	case "submit":
		told = s.submit(rest[0], number(rest[1]))
	case "fill":
		s.ways[s.fill](number(rest[0]))
	case "release": // it has begun with its first process
	case "late":
		seconds, err := strconv.ParseFloat(rest[1], 64)
		check(err)
		told = s.lateness(number(rest[0]), seconds)
	default:
		check(fmt.Errorf("%s is no command", command))
	}
	check(json.NewEncoder(os.Stdout).Encode(told))
}

func (s side) describe() answer {
	program, err := os.Executable()
	check(err)
	worker := func(slot string) []string { return []string{program, "worker", slot} }
	return answer{
		"versions":   versions(s.modules),
		"durability": s.durability(),
		"kinds":      s.kinds,
		"workers":    answer{"1": [][]string{worker("0")}, "2": [][]string{worker("0"), worker("1")}},
	}
}

func (s side) submit(kind string, n int) answer {
	s.ways[kind](warmUp)
	began := time.Now()
	s.ways[kind](n)
	return answer{"seconds": time.Since(began).Seconds()}
}

// lateness sends one at a time, each when the one before has started, with a pause of a length by chance; the first only shows that the worker is there.
func (s side) lateness(n int, seconds float64) answer {
	counter := attach()
	end := time.Now().Add(time.Duration(seconds * float64(time.Second)))
	submits := []float64{}
	sent := 0
	for sent <= n && (sent < 2 || time.Now().Before(end)) {
		began := monotonic()
		s.late(began)
		submits = append(submits, float64(monotonic()-began)/1e6)
		sent++
		if !counter.started(int64(sent)) {
			break
		}
		time.Sleep(time.Duration((5 + 25*rand.Float64()) * float64(time.Millisecond)))
	}
	return answer{"milliseconds": counter.milliseconds(sent)[1:], "submits": submits[1:]}
}

// one sends n, one after the other.
func one(send func()) func(int) {
	return func(n int) {
		for range n {
			send()
		}
	}
}

// many sends n from all callers at once, each one after the other.
func many(send func()) func(int) {
	return func(n int) {
		var group sync.WaitGroup
		var taken atomic.Int64
		for range callers {
			group.Go(func() {
				for taken.Add(1) <= int64(n) {
					send()
				}
			})
		}
		group.Wait()
	}
}

func versions(modules map[string]string) map[string]string {
	found := map[string]string{"go": strings.TrimPrefix(runtime.Version(), "go")}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if name := modules[module.Path]; name != "" {
				found[name] = strings.TrimPrefix(module.Version, "v")
			}
		}
	}
	return found
}

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

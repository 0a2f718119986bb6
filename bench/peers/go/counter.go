package main

import (
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// The memory of counter.py, which all processes of a run share: slots of (process, hits, first, last), then waits in ns.
const (
	slots = 64
	waits = 8192
)

type slot struct {
	process     int64
	hits        atomic.Int64
	first, last atomic.Int64
}

type counter struct {
	slots [slots]slot
	waits [waits]int64
}

type taken struct {
	*slot
	all *counter
}

// monotonic is the clock that Python calls monotonic_ns; Go reads the same one, and only hides where it starts.
var (
	start = time.Now()
	base  = func() int64 {
		var now syscall.Timespec
		const monotonicClock = 1
		_, _, failed := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, monotonicClock, uintptr(unsafe.Pointer(&now)), 0)
		if failed != 0 {
			check(failed)
		}
		return now.Nano()
	}()
)

func monotonic() int64 { return base + int64(time.Since(start)) }

func attach() *counter {
	file, err := os.OpenFile(os.Getenv("BENCH_COUNTER"), os.O_RDWR, 0)
	check(err)
	defer file.Close()
	memory, err := syscall.Mmap(int(file.Fd()), 0, int(unsafe.Sizeof(counter{})), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	check(err)
	return (*counter)(unsafe.Pointer(&memory[0]))
}

func (c *counter) take(number int) taken {
	mine := &c.slots[number]
	mine.process = int64(os.Getpid())
	return taken{mine, c}
}

func (t taken) hit() {
	now := monotonic()
	t.first.CompareAndSwap(0, now)
	for last := t.last.Load(); last < now && !t.last.CompareAndSwap(last, now); last = t.last.Load() {
	}
	t.hits.Add(1)
}

func (t taken) late(sent int64) {
	t.all.waits[t.all.hits()%waits] = monotonic() - sent
	t.hit()
}

func (c *counter) hits() (sum int64) {
	for i := range c.slots {
		sum += c.slots[i].hits.Load()
	}
	return
}

func (c *counter) started(n int64) bool {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(500 * time.Microsecond) {
		if c.hits() >= n {
			return true
		}
	}
	return false
}

func (c *counter) milliseconds(n int) []float64 {
	found := make([]float64, n)
	for i := range found {
		found[i] = float64(c.waits[i]) / 1e6
	}
	return found
}

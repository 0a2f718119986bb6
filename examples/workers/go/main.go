// A worker for Taskmill in Go, over gRPC: it joins, claims, beats, runs and finishes, honours cancels and timeouts, and ends on SIGTERM.
//
//	TASKMILL_API_KEY=tm_… ./worker -address 127.0.0.1:9090 -queue default -slots 8
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "taskmill.example/worker/taskmillv1"
)

// Why an attempt is stopped; each has an ending of its own.
var (
	errCancelled = errors.New("the task was cancelled")
	errLost      = errors.New("the lease was lost")
	errStopping  = errors.New("the worker stops")
	errTimeout   = errors.New("the attempt took too long")
)

type running struct {
	task *pb.ClaimedTask
	stop context.CancelCauseFunc
}

type worker struct {
	pb.WorkersClient
	id      string
	lease   time.Duration
	slots   chan struct{} // holds one item for each task that runs
	mu      sync.Mutex
	request int64              // the last claim whose answer we have
	held    map[int64]*running // by the token of its lease
}

func main() {
	address := flag.String("address", "127.0.0.1:9090", "where the server listens")
	queue := flag.String("queue", "default", "the queue to claim from")
	slots := flag.Int("slots", 8, "how many tasks run at once")
	lease := flag.Duration("lease", 30*time.Second, "how long we may be silent before our tasks run elsewhere")
	flag.Parse()
	connection, err := grpc.NewClient(*address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		log.Fatal(err)
	}
	calls := metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer "+os.Getenv("TASKMILL_API_KEY"))
	w := &worker{WorkersClient: pb.NewWorkersClient(connection), slots: make(chan struct{}, *slots), held: map[int64]*running{}}

	types := []*pb.WorkerType{}
	for name := range handlers {
		types = append(types, &pb.WorkerType{Name: name})
	}
	joined, err := w.Join(calls, &pb.JoinRequest{Types: types, Queues: []string{*queue}, Lease: durationpb.New(*lease), Info: map[string]string{"language": "go"}})
	if err != nil {
		log.Fatalf("cannot join: %v", err)
	}
	w.id, w.lease = joined.Worker, joined.Lease.AsDuration()
	log.Printf("joined as %s", w.id)

	stop, _ := signal.NotifyContext(calls, syscall.SIGTERM, os.Interrupt)
	go w.beat(calls)
	for stop.Err() == nil {
		w.claim(stop, calls)
	}
	time.AfterFunc(5*time.Second, func() { w.end(errStopping, func(*running) bool { return true }) })
	for range cap(w.slots) { // every slot is ours again when everything has ended
		w.slots <- struct{}{}
	}
	if _, err := w.Leave(calls, &pb.LeaveRequest{Worker: w.id}); err == nil {
		log.Print("left")
	}
}

// claim waits for tasks and starts as many as there are free slots. Asked again under the same number, the server answers the same tasks.
func (w *worker) claim(stop, calls context.Context) {
	free := cap(w.slots) - len(w.slots)
	if free == 0 {
		time.Sleep(10 * time.Millisecond)
		return
	}
	ctx, cancel := context.WithTimeout(stop, 15*time.Second)
	defer cancel()
	answer, err := w.Claim(ctx, &pb.ClaimRequest{Worker: w.id, Request: w.request + 1, Slots: int32(free), Wait: durationpb.New(10 * time.Second)})
	if err != nil {
		if stop.Err() == nil {
			log.Printf("cannot claim: %v", err)
			time.Sleep(time.Second)
		}
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(answer.Tasks) > 0 {
		w.request = answer.Request
	}
	for _, task := range answer.Tasks {
		ctx, stop := context.WithCancelCause(calls)
		w.held[task.Token] = &running{task, stop}
		w.slots <- struct{}{}
		go w.attempt(ctx, calls, task)
	}
}

// attempt runs one task and tells how it ended.
func (w *worker) attempt(ctx, calls context.Context, task *pb.ClaimedTask) {
	limited, cancel := context.WithTimeoutCause(ctx, task.Timeout.AsDuration(), errTimeout)
	defer cancel()
	result, err := handlers[task.Type](limited, task)
	data, wrong := json.Marshal(result)
	outcome := &pb.Outcome{Task: task.Id, Token: task.Token}
	switch err = errors.Join(err, wrong); {
	case err == nil:
		outcome.Ending = &pb.Outcome_Completed{Completed: &pb.Completed{Result: data}}
	case errors.Is(err, errCancelled):
		outcome.Ending = &pb.Outcome_Cancelled{Cancelled: &pb.Cancelled{}}
	case errors.Is(err, errStopping), errors.Is(err, errLost):
		outcome.Ending = &pb.Outcome_Released{Released: &pb.Released{}}
	default:
		outcome.Ending = &pb.Outcome_Failed{Failed: &pb.Failed{Error: &pb.Error{Code: "go_error", Message: err.Error()}}}
	}
	for range 5 { // an answer that got lost is asked for again: the second time changes nothing
		if _, err := w.Finish(calls, &pb.FinishRequest{Worker: w.id, Outcomes: []*pb.Outcome{outcome}}); err == nil {
			break
		}
		time.Sleep(time.Second)
	}
	w.mu.Lock()
	delete(w.held, task.Token)
	w.mu.Unlock()
	<-w.slots
}

// beat says every third of a lease what we hold, and hears what to stop.
func (w *worker) beat(calls context.Context) {
	for range time.Tick(w.lease / 3) {
		w.mu.Lock()
		request := &pb.HeartbeatRequest{Worker: w.id, Request: w.request}
		for token := range w.held {
			request.Leases = append(request.Leases, token)
		}
		w.mu.Unlock()
		ctx, cancel := context.WithTimeout(calls, w.lease)
		answer, err := w.Heartbeat(ctx, request)
		cancel()
		if err != nil {
			log.Printf("cannot beat: %v", err)
			continue
		}
		if !answer.Known {
			log.Fatal("the server does not know us any more: we were silent for too long; start again")
		}
		for _, id := range answer.Cancelled {
			w.end(errCancelled, func(one *running) bool { return one.task.Id == id })
		}
		for _, token := range answer.Lost {
			w.end(errLost, func(one *running) bool { return one.task.Token == token })
		}
	}
}

func (w *worker) end(why error, which func(*running) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.held {
		if which(one) {
			log.Printf("%s: %v", one.task.Id, why)
			one.stop(why)
		}
	}
}

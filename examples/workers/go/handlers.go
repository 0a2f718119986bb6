package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"time"

	pb "taskmill.example/worker/taskmillv1"
)

// A Handler runs one attempt. Its ctx ends when the task is cancelled, its time is over, its lease is lost or the worker stops: then it returns
// context.Cause(ctx). Any other error means: try again, when the task's policy says.
type Handler func(ctx context.Context, task *pb.ClaimedTask) (any, error)

// Write your own in their place.
var handlers = map[string]Handler{"go.echo": echo, "go.flaky": flaky, "go.sleep": sleep}

func echo(_ context.Context, task *pb.ClaimedTask) (any, error) {
	return json.RawMessage(task.Payload), nil
}

func flaky(_ context.Context, task *pb.ClaimedTask) (any, error) {
	if task.Attempt < 3 {
		return nil, fmt.Errorf("attempt %d fails", task.Attempt)
	}
	return map[string]int32{"attempt": task.Attempt}, nil
}

func sleep(ctx context.Context, task *pb.ClaimedTask) (any, error) {
	var wanted struct{ Seconds float64 }
	if err := json.Unmarshal(task.Payload, &wanted); err != nil {
		return nil, err
	}
	log.Printf("sleeping: %s", task.Id)
	select {
	case <-time.After(time.Duration(wanted.Seconds * float64(time.Second))):
		return "slept", nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

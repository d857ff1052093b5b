package kv

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tidemark/kv/mcbp"
	"tidemark/kv/seglog"
)

// gatedFile is a log file whose writes wait for a gate, if there is one.
type gatedFile struct {
	seglog.File
	gate *atomic.Pointer[chan struct{}]
	held *atomic.Int64
}

func (f *gatedFile) Write(b []byte) (int, error) {
	if g := f.gate.Load(); g != nil {
		f.held.Add(1)
		<-*g
	}
	return f.File.Write(b)
}

// TestADiskThatHangs: while a write to the disk does not come back, the node says so in its readiness and, for the
// doctor, in its statistics, and serves documents.
func TestADiskThatHangs(t *testing.T) {
	var gate atomic.Pointer[chan struct{}]
	var held atomic.Int64
	config, now := testConfig(t.TempDir()), newClock()
	config.Now = now.now
	config.WrapFile = func(f seglog.File) seglog.File { return &gatedFile{f, &gate, &held} }
	n, _ := runNode(t, config)
	c, writer := login(t, n.MemcachedAddr()), login(t, n.MemcachedAddr())
	c.want(setFrame(0, "k", "1"), mcbp.StatusOK)
	goOn := make(chan struct{})
	gate.Store(&goOn)
	writer.send(setFrame(0, "k2", "1"))
	for end := time.Now().Add(testTimeout); held.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no write reaches the disk")
		}
	}
	now.add(time.Minute)
	if at := n.reasons(); len(at) != 1 || at[0].Code != reasonDisk ||
		!strings.Contains(at[0].Detail, "world cannot be written at the moment: its disk has not answered a write for ") {
		t.Errorf("its reasons are %+v", at)
	}
	if said := c.stats("")[mcbp.StatDiskTrouble]; !strings.Contains(said, "its disk has not answered a write for ") {
		t.Errorf("its statistics say: %q", said)
	}
	c.want(request(mcbp.OpGet, 0, nil, []byte("k"), nil), mcbp.StatusOK)
	gate.Store(nil)
	close(goOn)
	if a := writer.read(); a.Status() != mcbp.StatusOK {
		t.Errorf("afterwards the write is answered %v", a.Status())
	}
	for end := time.Now().Add(testTimeout); len(n.reasons()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) { // a sync that began before the clock was set may last a little longer
			t.Fatalf("its reasons are %+v although the disk answers", n.reasons())
		}
	}
	wantUnready(t, n)
	if said, is := c.stats("")[mcbp.StatDiskTrouble]; is {
		t.Errorf("afterwards its statistics say: %q", said)
	}
}

// TestStopWithAHungDisk checks that a node that is stopped does not wait for its disk, and that what it had
// acknowledged is there after its next start.
func TestStopWithAHungDisk(t *testing.T) {
	var gate atomic.Pointer[chan struct{}]
	var held atomic.Int64
	config := testConfig(t.TempDir())
	config.stopPatience = 50 * time.Millisecond
	config.WrapFile = func(f seglog.File) seglog.File { return &gatedFile{f, &gate, &held} }
	n, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	ready(t, n)
	c := login(t, n.MemcachedAddr())
	c.want(setFrame(0, "k", "1"), mcbp.StatusOK)
	goOn := make(chan struct{})
	gate.Store(&goOn)
	c.send(setFrame(0, "k2", "1"))
	for end := time.Now().Add(testTimeout); held.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no write reaches the disk")
		}
	}
	stop()
	select {
	case err := <-done:
		if !errors.Is(err, ErrHangs) {
			t.Errorf("it ends with %v, want %v", err, ErrHangs)
		}
	case <-time.After(testTimeout):
		t.Error("it does not stop")
	}
	gate.Store(nil)
	close(goOn)
	<-n.stopped
	next, _ := runNode(t, testConfig(config.Dir))
	login(t, next.MemcachedAddr()).want(request(mcbp.OpGet, 0, nil, []byte("k"), nil), mcbp.StatusOK)
}

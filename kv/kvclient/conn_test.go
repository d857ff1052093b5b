package kvclient

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/kv/mcbp"
)

// TestALargeRequestOverASlowLink checks that a node that is still reading a request owes no answer to it, and that
// one that does not read on is dead after OpTimeout. All time is virtual.
func TestALargeRequestOverASlowLink(t *testing.T) {
	const size, piece = 4 << 20, 64 << 10
	for _, c := range []struct {
		name string
		take int // bytes that the node reads before it hangs
		want string
	}{
		{"taken in whole", size + mcbp.HeaderSize, ""},
		{"stalls within it", size / 2, "owes 1 answers and has neither read nor sent data for 5s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				conn := newConn(&Session{Conn: near}, "node", DefaultOpTimeout)
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					defer far.Close()
					head := make([]byte, mcbp.HeaderSize)
					_, _ = io.ReadFull(far, head)
					for taken := len(head); taken < c.take; taken += piece {
						time.Sleep(time.Second)
						_, _ = io.CopyN(io.Discard, far, int64(min(piece, c.take-taken)))
					}
					if c.want != "" {
						<-conn.Done()
						return
					}
					h, err := mcbp.ParseHeader(head)
					if err != nil {
						t.Error(err)
					}
					answer, _ := mcbp.Append(nil, mcbp.Frame{Header: mcbp.Response(h, mcbp.StatusOK)})
					_, _ = far.Write(answer)
				}()
				began := time.Now()
				_, err := conn.Do(t.Context(), mcbp.Frame{Header: mcbp.Request(mcbp.OpSet, 0, 0), Value: make([]byte, size)})
				switch {
				case c.want == "" && err != nil:
					t.Errorf("after %v: %v", time.Since(began), err)
				case c.want != "" && (!errors.Is(err, ErrClosed) || !errors.Is(err, ErrSilent) ||
					!strings.Contains(err.Error(), c.want)):
					t.Errorf("after %v: %v, want %s", time.Since(began), err, c.want)
				}
				_ = conn.Close()
				<-ended
			})
		})
	}
}

// TestSmallRequestsDoNotHideAHungNode checks that small requests acknowledged by the node's system are no sign of life
// of its process: one per second does not keep the connection open. All time is virtual.
func TestSmallRequestsDoNotHideAHungNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		conn := newConn(&Session{Conn: near}, "node", DefaultOpTimeout)
		go func() { _, _ = io.Copy(io.Discard, far) }() // its system
		began := time.Now()
		for conn.Err() == nil && time.Since(began) < time.Minute {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				_, _ = conn.Do(ctx, mcbp.Frame{Header: mcbp.Request(mcbp.OpGet, 0, 0), Key: []byte("k")})
			}()
			time.Sleep(time.Second)
		}
		if took := time.Since(began); !errors.Is(conn.Err(), ErrSilent) || took > 2*DefaultOpTimeout {
			t.Errorf("after %v: %v, want %v after about %v", took, conn.Err(), ErrSilent, DefaultOpTimeout)
		}
		_ = conn.Close()
		_ = far.Close()
	})
}

// TestUnacknowledgedBytesCountAsUnsent checks that bytes that the peer's system has not acknowledged count as not sent.
func TestUnacknowledgedBytesCountAsUnsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		conn := newConn(&Session{Conn: near}, "node", DefaultOpTimeout)
		var left atomic.Int64 // in the system's buffer, which holds all of it
		left.Store(1 << 20)
		conn.unsent = func() int { return int(left.Load()) }
		go func() { _, _ = io.Copy(io.Discard, far) }()
		ended := make(chan time.Duration, 1)
		go func() {
			began := time.Now()
			_, _ = conn.Do(t.Context(), mcbp.Frame{Header: mcbp.Request(mcbp.OpSet, 0, 0), Value: make([]byte, 1<<20)})
			ended <- time.Since(began)
		}()
		for left.Load() > 0 {
			time.Sleep(time.Second)
			left.Add(-64 << 10)
		}
		if took := <-ended; took < 16*time.Second || took > 16*time.Second+2*DefaultOpTimeout {
			t.Errorf("it ended after %v: it was on its way for 16 s", took)
		}
		_ = conn.Close()
		_ = far.Close()
	})
}

package kvclient

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tidemark/kv/mcbp"
)

// TestALargeRequestOverASlowLink: a node that still takes a request owes no answer to it; one that takes nothing of it
// any more is dead after OpTimeout. All time is virtual.
func TestALargeRequestOverASlowLink(t *testing.T) {
	const size, piece = 4 << 20, 64 << 10
	for _, c := range []struct {
		name string
		take int // bytes that the node takes before it stands still
		want string
	}{
		{"taken in whole", size + mcbp.HeaderSize, ""},
		{"stands still within it", size / 2, "owes 1 answers and takes and sends nothing for 5s"},
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

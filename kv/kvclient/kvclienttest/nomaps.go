package kvclienttest

import (
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"tidemark/kv/mcbp"
)

// unknownOp is an opcode that no node supports.
const unknownOp = 0xf7

// WithoutMaps starts a proxy in front of a node that hides its cluster map: GET_CLUSTER_CONFIG is answered with
// UNKNOWN_COMMAND, like by engines that do not have it. node returns the node's address for each connection.
func WithoutMaps(t testing.TB, node func() string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	keep := func(c net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		open[c] = true
	}
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	all.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			keep(from)
			all.Go(func() {
				defer from.Close()
				to, err := net.Dial("tcp", node())
				if err != nil {
					return
				}
				keep(to)
				var both sync.WaitGroup
				both.Go(func() { pass(to, from, byte(mcbp.OpGetClusterConfig), unknownOp) })
				both.Go(func() { pass(from, to, unknownOp, byte(mcbp.OpGetClusterConfig)) })
				both.Wait()
			})
		}
	})
	return l.Addr().String()
}

// pass copies frames until one end closes, and replaces one opcode by another.
func pass(to, from net.Conn, op, instead byte) {
	defer to.Close()
	defer from.Close()
	var head [mcbp.HeaderSize]byte
	for {
		if _, err := io.ReadFull(from, head[:]); err != nil {
			return
		}
		h, err := mcbp.ParseHeader(head[:])
		if err != nil {
			return
		}
		if head[1] == op {
			head[1] = instead
		}
		if _, err := to.Write(head[:]); err != nil {
			return
		}
		if _, err := io.CopyN(to, from, int64(h.BodyLen)); err != nil && !errors.Is(err, io.EOF) {
			return
		}
	}
}

package kvclient_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemark/kv/kvclient"
	"tidemark/kv/kvclient/kvclienttest"
	"tidemark/kv/mcbp"
)

// Load under faults: everything is stored, and the versions of one key arrive in their order although single
// documents are refused and connections break.
func TestLoadUnderFaults(t *testing.T) {
	w := newTwoNodes(t)
	for i := range w.store {
		w.store[i].fault = func(f mcbp.Frame, n int) (mcbp.Status, action) {
			switch {
			case f.Op != mcbp.OpSet:
				return 0, actNone
			case n%97 == 0:
				return mcbp.StatusTemporary, actStatus
			case n == 900 || n == 2100:
				return 0, actLose
			}
			return 0, actNone
		}
	}
	c := connect(t, options(), w.srv[0].Addr())
	const docs, keys = 6000, 150
	i := 0
	calls := 0
	stats, err := c.Load(within(t, time.Minute), func() (string, []byte, bool, error) {
		if i == docs/2 {
			w.owner.Store(0)
			w.rev.Add(1)
			w.own()
		}
		if i == docs {
			return "", nil, false, nil
		}
		i++
		return fmt.Sprint("key", i%keys), []byte(fmt.Sprint(i)), true, nil
	}, func(kvclient.LoadStats) { calls++ })
	if err != nil || stats.Documents != docs || stats.Retried == 0 || calls < 2 {
		t.Fatalf("%+v, %v, %d calls of progress", stats, err, calls)
	}
	for k := range keys {
		key := fmt.Sprint("key", k)
		last := docs - keys + k
		if k == 0 {
			last = docs
		}
		node := 0
		v, history := w.store[node].get(key)
		if v != fmt.Sprint(last) {
			t.Fatalf("%s is %q, want %d (%v)", key, v, last, history)
		}
		// A lost answer repeats a version; an older one never follows a newer one.
		if !slices.IsSortedFunc(history, func(a, b string) int { return len(a) - len(b) }) {
			t.Fatalf("%s: versions out of order: %v", key, history)
		}
	}
}

func TestLoadEnds(t *testing.T) {
	st := newStore()
	c := connect(t, options(), serve(t, &kvclienttest.Server{Handle: st.handle}).Addr())
	ctx := within(t, time.Minute)
	n := 0
	stats, err := c.Load(ctx, func() (string, []byte, bool, error) {
		if n++; n == 50 {
			return "", nil, false, errors.New("line 50 is not JSON")
		}
		return fmt.Sprint(n), nil, true, nil
	}, nil)
	if err == nil || !strings.Contains(err.Error(), "line 50") || stats.Documents != 49 {
		t.Fatalf("%+v, %v", stats, err)
	}
	st.failing(func(f mcbp.Frame, _ int) (mcbp.Status, action) {
		if string(f.Key) == "bad" {
			return mcbp.StatusTooBig, actStatus
		}
		return 0, actNone
	})
	n = 0
	_, err = c.Load(ctx, func() (string, []byte, bool, error) {
		n++
		return []string{"", "a", "bad", "c"}[n%4], nil, n < 4,
			nil
	}, nil)
	if !errors.Is(err, kvclient.ErrTooBig) || !strings.Contains(err.Error(), "bad") {
		t.Fatal(err)
	}
	_, err = c.Load(ctx, func() (string, []byte, bool, error) { return strings.Repeat("k", 999), nil, true, nil }, nil)
	if !errors.Is(err, kvclient.ErrTooBig) {
		t.Fatal(err)
	}
	st.failing(func(mcbp.Frame, int) (mcbp.Status, action) { return 0, actMute })
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = c.Load(short, func() (string, []byte, bool, error) { n++; return fmt.Sprint(n), nil, n < 20, nil }, nil)
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, kvclient.ErrClosed) {
		t.Fatal(err)
	}
}

// BenchmarkLoad measures the client with a node that only acknowledges, including the work of the node.
func BenchmarkLoad(b *testing.B) {
	value := []byte(`{"v":"` + strings.Repeat("x", 1000) + `"}`)
	srv := serve(b, &kvclienttest.Server{Handle: ackAll})
	c := connect(b, options(), srv.Addr())
	i := 0
	b.ReportAllocs()
	b.ResetTimer()
	stats, err := c.Load(context.Background(), func() (string, []byte, bool, error) {
		if i == b.N {
			return "", nil, false, nil
		}
		i++
		return fmt.Sprintf("key-%08d", i), value, true, nil
	}, nil)
	b.StopTimer()
	if err != nil || stats.Documents != uint64(b.N) {
		b.Fatal(stats, err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "docs/s")
}

// ackAll answers every SET without storing anything, with few system calls: it takes over the connection.
func ackAll(p *kvclienttest.Peer, f mcbp.Frame) bool {
	w := bufio.NewWriterSize(p, 64<<10)
	token := mcbp.MutationToken{VBUUID: 1, Seqno: 2}.AppendExtras(nil)
	var buf []byte
	answer := func(f mcbp.Frame) {
		buf, _ = mcbp.Append(buf[:0], mcbp.Frame{Header: mcbp.Response(f.Header, mcbp.StatusOK), Extras: token})
		_, _ = w.Write(buf)
	}
	answer(f)
	for {
		if p.Buffered() == 0 {
			_ = w.Flush()
		}
		f, err := p.Next()
		if err != nil {
			return false
		}
		answer(f)
	}
}

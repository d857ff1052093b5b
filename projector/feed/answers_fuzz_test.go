package feed

import (
	"context"
	"math"
	"runtime"
	"testing"
	"time"

	"tidemark/kv/kvclient"
	"tidemark/kv/mcbp"
	"tidemark/timestamp"
)

// gatedConn is a memoryConn that returns nothing before its gate is open.
type gatedConn struct {
	memoryConn
	gate chan struct{}
}

func (g *gatedConn) Read(p []byte) (int, error) {
	<-g.gate
	return g.memoryConn.Read(p)
}

// asking are the pending requests of FuzzAnswers, in the order of their opaques from requestOpaque+1 on; the first
// one is for a stream, whose opaque is its id.
func asking(c *Conn) []func() {
	ctx := context.Background()
	return []func(){
		func() { _, _ = c.OpenStream(ctx, StreamRequest{VBucket: 1, ID: 1, End: mcbp.EndOfTime}) },
		func() { _, _ = c.FailoverLog(ctx, 1) },
		func() { _, _ = c.HighSeqnos(ctx) },
		func() {
			if d, _ := c.Details(ctx); len(d) > mcbp.MaxVBuckets {
				panic("more vbuckets than there can be")
			}
		},
		func() { _, _ = c.ClusterConfig(ctx) },
		func() { _ = c.CloseStream(ctx, 1) },
		func() { _ = c.control(ctx, "key", "value") },
	}
}

// FuzzAnswers: whatever a node answers, each request ends, and so does the connection.
func FuzzAnswers(f *testing.F) {
	answer := func(op mcbp.Opcode, opaque uint32, status mcbp.Status, key, value []byte) []byte {
		b, err := mcbp.Append(nil, mcbp.Frame{Header: mcbp.Response(mcbp.Request(op, 0, opaque), status), Key: key,
			Value: value})
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	log := mcbp.AppendFailoverLog(nil, timestamp.FailoverLog{{VBUUID: 7, Seqno: 3}, {VBUUID: 6}})
	const own = uint32(requestOpaque)
	var all []byte
	for _, b := range [][]byte{
		answer(mcbp.OpDCPStreamReq, 1, mcbp.StatusOK, nil, log),
		answer(mcbp.OpDCPFailoverLog, own+1, mcbp.StatusOK, nil, log),
		answer(mcbp.OpGetAllVBSeqnos, own+2, mcbp.StatusOK, nil, mcbp.AppendVBSeqno(nil,
			mcbp.VBucketSeqno{VBucket: 1, Seqno: 9})),
		answer(mcbp.OpStat, own+3, mcbp.StatusOK, []byte("vb_1"), []byte("active")),
		answer(mcbp.OpStat, own+3, mcbp.StatusOK, []byte("vb_1:purge_seqno"), []byte("18446744073709551615")),
		answer(mcbp.OpStat, own+3, mcbp.StatusOK, nil, nil),
		answer(mcbp.OpGetClusterConfig, own+4, mcbp.StatusOK, nil, []byte(`{"rev":1,"nodes":[{"hostname":"$HOST:8091"}],"vBucketServerMap":{"vBucketMap":[[0]]}}`)),
		answer(mcbp.OpDCPCloseStream, own+5, mcbp.StatusOK, nil, nil),
		answer(mcbp.OpDCPControl, own+6, mcbp.StatusInvalid, nil, []byte(`{"error":{}}`)),
	} {
		f.Add(b)
		all = append(all, b...)
	}
	f.Add(all)
	f.Add(answer(mcbp.OpDCPStreamReq, 1, mcbp.StatusRollback, nil, mcbp.AppendRollback(nil, math.MaxUint64)))
	f.Add(answer(mcbp.OpDCPStreamReq, 1, mcbp.StatusNotMyVBucket, nil, []byte(`{"rev":`)))
	f.Add(answer(mcbp.OpGetAllVBSeqnos, own+2, mcbp.StatusAuthStale, nil, nil))
	conf, err := Config{Name: "n", Bucket: "b", DeadAfter: time.Hour, RequestTimeout: time.Hour}.Checked()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		g := &gatedConn{memoryConn: memoryConn{data: data}, gate: make(chan struct{})}
		c := newConn(&kvclient.Session{Conn: g}, nil, conf)
		over := make(chan struct{})
		ask := asking(c)
		for n, do := range ask {
			go func() { do(); over <- struct{}{} }()
			for pending := 0; pending <= n; { // the opaques are in this order
				c.mu.Lock()
				pending = len(c.requests.pending)
				c.mu.Unlock()
				runtime.Gosched()
			}
		}
		close(g.gate)
		for range ask {
			<-over
		}
		for { // the stream's events
			b, err := c.Next(t.Context())
			if err != nil {
				break
			}
			b.Release()
		}
		<-c.Done()
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

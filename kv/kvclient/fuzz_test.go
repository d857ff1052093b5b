package kvclient

import (
	"bytes"
	"context"
	"net"
	"runtime"
	"testing"
	"time"

	"tidemark/kv/mcbp"
)

// scripted is a connection to a node that sends given bytes, once the gate is open, and closes.
type scripted struct {
	net.Conn
	*bytes.Reader
	gate chan struct{}
}

func (s *scripted) Read(p []byte) (int, error) {
	<-s.gate
	return s.Reader.Read(p)
}
func (s *scripted) Write(p []byte) (int, error) { return len(p), nil }
func (s *scripted) Close() error                { return nil }
func (s *scripted) SetDeadline(time.Time) error { return nil }

// sending returns a connection to a node that sends data at once.
func sending(data []byte) *scripted {
	s := &scripted{Reader: bytes.NewReader(data), gate: make(chan struct{})}
	close(s.gate)
	return s
}

// answers returns encoded frames; their opaques are 1, 2 and so on if not given.
func answers(t testing.TB, frames ...mcbp.Frame) (b []byte) {
	for i, fr := range frames {
		if fr.Magic = mcbp.MagicResponse; fr.Opaque == 0 {
			fr.Opaque = uint32(i + 1)
		}
		var err error
		if b, err = mcbp.Append(b, fr); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func reply(op mcbp.Opcode, status mcbp.Status, value string) mcbp.Frame {
	return mcbp.Frame{Header: mcbp.Header{Op: op, VBucketOrStatus: uint16(status)}, Value: []byte(value)}
}

// FuzzLogin checks that the login ends, whatever a node answers to HELLO, SASL and SELECT_BUCKET, that PLAIN is used
// only where permitted, and that SCRAM succeeds only if the node has proved its identity, which these bytes cannot.
func FuzzLogin(f *testing.F) {
	features := string(mcbp.AppendFeatures(nil, []mcbp.Feature{mcbp.FeatureSelectBucket, mcbp.FeatureXerror}))
	hello, ok := reply(mcbp.OpHello, mcbp.StatusOK, features), reply(mcbp.OpSelectBucket, mcbp.StatusOK, "")
	f.Add(answers(f, hello, reply(mcbp.OpSASLList, mcbp.StatusOK, "PLAIN"), reply(mcbp.OpSASLAuth, mcbp.StatusOK, ""), ok),
		true)
	f.Add(answers(f, hello, reply(mcbp.OpSASLList, mcbp.StatusOK, "SCRAM-SHA512 SCRAM-SHA1 PLAIN"),
		reply(mcbp.OpSASLAuth, mcbp.StatusAuthContinue, "r=x,s=QSXCR+Q6sek8bf92,i=4096"),
		reply(mcbp.OpSASLStep, mcbp.StatusOK, "v=rmF9pqV8S7suAoZWja4dJRkFsKQ="), ok), false)
	f.Add(answers(f, hello, reply(mcbp.OpSASLList, mcbp.StatusOK, "SCRAM-SHA1"), reply(mcbp.OpSASLAuth, mcbp.StatusOK, ""),
		ok), true)
	f.Add(answers(f, hello, reply(mcbp.OpSASLList, mcbp.StatusNotSupported, "")), false)
	f.Add(answers(f, reply(mcbp.OpHello, mcbp.StatusOK, "\x00")), false)
	f.Fuzz(func(t *testing.T, data []byte, plain bool) {
		s := &Session{Conn: sending(data)}
		err := s.login(context.Background(), Options{User: "u", Password: "p", Bucket: "b", AllowPlain: plain}.withDefaults())
		if err == nil && (s.Mechanism() != mechPlain || !plain) {
			t.Fatalf("logged in by %q", s.Mechanism())
		}
	})
}

// FuzzConn checks that each request ends, and the connection too, whatever a node answers.
func FuzzConn(f *testing.F) {
	stat := reply(mcbp.OpStat, mcbp.StatusOK, "active")
	stat.Key, stat.Opaque = []byte("vb_0"), 2
	last := reply(mcbp.OpStat, mcbp.StatusOK, "")
	last.Opaque = 2
	get := reply(mcbp.OpGet, mcbp.StatusOK, "value")
	get.Extras = mcbp.AppendGetReply(nil, 7)
	seqnos := reply(mcbp.OpGetAllVBSeqnos, mcbp.StatusOK, string(mcbp.AppendVBSeqno(nil,
		mcbp.VBucketSeqno{VBucket: 1, Seqno: 9})))
	seqnos.Opaque = 3
	f.Add(answers(f, get, stat, last, seqnos))
	f.Add(answers(f, get, stat, stat, stat))
	f.Add(answers(f, reply(mcbp.OpGet, mcbp.StatusAuthStale, "")))
	other := stat // several answers to a request that has one
	other.Opaque = 1
	f.Add(answers(f, other, other, other))
	f.Add(answers(f, reply(mcbp.OpGet, mcbp.StatusNotMyVBucket, `{"rev":1,"nodes":[{}],"vBucketServerMap":{"vBucketMap":[[0]]}}`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		n := &scripted{Reader: bytes.NewReader(data), gate: make(chan struct{})}
		c := newConn(&Session{Conn: n}, "n", time.Hour)
		over := make(chan struct{})
		ask := []func(){
			func() {
				fr, err := c.Do(context.Background(), mcbp.Frame{Header: mcbp.Request(mcbp.OpGet, 0, 0), Key: []byte("k")})
				if err == nil {
					_ = NewStatusError(fr)
				}
			},
			func() { _ = c.Stat(context.Background(), "vbucket-details", func(_, _ []byte) {}) },
			func() { _, _ = c.VBucketSeqnos(context.Background()) },
		}
		for i, do := range ask {
			go func() { do(); over <- struct{}{} }()
			for pending := 0; pending <= i; { // the opaques are in this order
				c.mu.Lock()
				pending = len(c.pending)
				c.mu.Unlock()
				runtime.Gosched()
			}
		}
		close(n.gate)
		for range ask {
			<-over
		}
		<-c.Done()
		_ = c.Close()
	})
}

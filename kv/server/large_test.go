package server

import (
	"bytes"
	"net"
	"testing"

	"tidemark/kv/mcbp"
)

// TestLargeFramesAreReadExactly: a frame that exceeds the read buffer is read whole, with nothing of the next one.
func TestLargeFramesAreReadExactly(t *testing.T) {
	sizes := []int{readBufferBytes - mcbp.HeaderSize, readBufferBytes - mcbp.HeaderSize + 1, readBufferBytes - 1,
		readBufferBytes, readBufferBytes + 1, 4 * readBufferBytes, 4*readBufferBytes + 1, 1<<20 + 3}
	near, far := net.Pipe()
	defer near.Close()
	srv := newTestServer()
	c := newConn(srv, far, 1)
	c.authed = true
	var all []byte
	for i, n := range sizes {
		var err error
		if all, err = mcbp.Append(all, mcbp.Frame{Header: mcbp.Request(mcbp.OpSet, uint16(i), 0),
			Value: bytes.Repeat([]byte{byte('a' + i)}, n)}); err != nil {
			t.Fatal(err)
		}
	}
	go func() { _, _ = near.Write(all) }()
	for i, n := range sizes {
		f, used, err := c.read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if f.VBucket() != uint16(i) || !bytes.Equal(f.Value, bytes.Repeat([]byte{byte('a' + i)}, n)) {
			t.Errorf("frame %d of %d bytes: vbucket %d, %d bytes", i, n, f.VBucket(), len(f.Value))
		}
		if used > 0 {
			_, _ = c.r.Discard(used)
		} else {
			srv.large.Release(int64(f.BodyLen))
		}
	}
}

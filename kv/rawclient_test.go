package kv

import (
	"bufio"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"tidemark/kv/mcbp"
)

// rawClient sends and reads single frames, so that tests can send what no client library would.
type rawClient struct {
	t  testing.TB
	nc net.Conn
	r  *bufio.Reader
}

func dialRaw(t testing.TB, addr string) *rawClient {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(60 * time.Second))
	return &rawClient{t: t, nc: nc, r: bufio.NewReaderSize(nc, 256<<10)}
}

func request(op mcbp.Opcode, vb uint16, extras, key, value []byte) mcbp.Frame {
	return mcbp.Frame{Header: mcbp.Request(op, vb, 7), Extras: extras, Key: key, Value: value}
}

func (c *rawClient) send(frames ...mcbp.Frame) {
	c.t.Helper()
	var buf []byte
	for _, f := range frames {
		var err error
		if buf, err = mcbp.Append(buf, f); err != nil {
			c.t.Fatal(err)
		}
	}
	if _, err := c.nc.Write(buf); err != nil {
		c.t.Fatal(err)
	}
}

func (c *rawClient) tryRead() (mcbp.Frame, error) {
	head := make([]byte, mcbp.HeaderSize)
	if _, err := io.ReadFull(c.r, head); err != nil {
		return mcbp.Frame{}, err
	}
	h, err := mcbp.ParseHeader(head)
	if err != nil {
		return mcbp.Frame{}, err
	}
	body := make([]byte, h.BodyLen)
	if _, err := io.ReadFull(c.r, body); err != nil {
		return mcbp.Frame{}, err
	}
	return h.Frame(body), nil
}

func (c *rawClient) read() mcbp.Frame {
	c.t.Helper()
	f, err := c.tryRead()
	if err != nil {
		c.t.Fatalf("read: %v", err)
	}
	return f
}

// call sends a request and reads its answer.
func (c *rawClient) call(f mcbp.Frame) mcbp.Frame {
	c.t.Helper()
	c.send(f)
	answer := c.read()
	if answer.Op != f.Op || answer.Opaque != f.Opaque {
		c.t.Fatalf("asked %v (%d), got the answer to %v (%d)", f.Op, f.Opaque, answer.Op, answer.Opaque)
	}
	return answer
}

func (c *rawClient) want(f mcbp.Frame, status mcbp.Status) mcbp.Frame {
	c.t.Helper()
	answer := c.call(f)
	if answer.Status() != status {
		c.t.Fatalf("%v answered %v, want %v", f.Op, answer.Status(), status)
	}
	return answer
}

// scram authenticates with SCRAM-SHA256, implemented independently of the server's side.
func (c *rawClient) scram(user, password string) mcbp.Status {
	c.t.Helper()
	first := "n=" + user + ",r=clientnonce"
	a := c.call(request(mcbp.OpSASLAuth, 0, nil, []byte("SCRAM-SHA256"), []byte("n,,"+first)))
	if a.Status() != mcbp.StatusAuthContinue {
		return a.Status()
	}
	server := string(a.Value)
	parts := strings.Split(server, ",")
	salt, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(parts[1], "s="))
	if err != nil {
		c.t.Fatal(err)
	}
	salted, err := pbkdf2.Key(sha256.New, password, salt, 4096, 32)
	if err != nil {
		c.t.Fatal(err)
	}
	sign := func(key []byte, text string) []byte {
		m := hmac.New(sha256.New, key)
		m.Write([]byte(text))
		return m.Sum(nil)
	}
	clientKey := sign(salted, "Client Key")
	stored := sha256.Sum256(clientKey)
	bare := "c=biws," + parts[0]
	signature := sign(stored[:], first+","+server+","+bare)
	for i := range signature {
		signature[i] ^= clientKey[i]
	}
	final := bare + ",p=" + base64.StdEncoding.EncodeToString(signature)
	a = c.call(request(mcbp.OpSASLStep, 0, nil, []byte("SCRAM-SHA256"), []byte(final)))
	if a.Status() == mcbp.StatusOK {
		proof := sign(sign(salted, "Server Key"), first+","+server+","+bare)
		if string(a.Value) != "v="+base64.StdEncoding.EncodeToString(proof) {
			c.t.Fatal("the server did not prove that it knows the password")
		}
	}
	return a.Status()
}

// login authenticates, negotiates features and selects the bucket.
func login(t testing.TB, addr string, features ...mcbp.Feature) *rawClient {
	t.Helper()
	c := dialRaw(t, addr)
	if s := c.scram(testUser, testPassword); s != mcbp.StatusOK {
		t.Fatalf("authentication: %v", s)
	}
	c.want(request(mcbp.OpHello, 0, nil, []byte("test"), mcbp.AppendFeatures(nil, features)), mcbp.StatusOK)
	c.want(request(mcbp.OpSelectBucket, 0, nil, []byte("world"), nil), mcbp.StatusOK)
	return c
}

func setFrame(vb uint16, key, value string) mcbp.Frame {
	return request(mcbp.OpSet, vb, mcbp.Store{}.AppendExtras(nil), []byte(key), []byte(value))
}

// openDCP opens a DCP connection with the given controls, as pairs of key and value.
func openDCP(t testing.TB, addr, name string, flags mcbp.OpenFlags, controls ...string) *rawClient {
	t.Helper()
	c := login(t, addr, mcbp.FeatureJSON)
	c.want(request(mcbp.OpDCPOpen, 0, mcbp.Open{Flags: mcbp.OpenProducer | flags}.AppendExtras(nil), []byte(name), nil),
		mcbp.StatusOK)
	for i := 0; i+1 < len(controls); i += 2 {
		c.want(request(mcbp.OpDCPControl, 0, nil, []byte(controls[i]), []byte(controls[i+1])), mcbp.StatusOK)
	}
	return c
}

func streamFrame(vb uint16, r mcbp.StreamRequest) mcbp.Frame {
	f := request(mcbp.OpDCPStreamReq, vb, r.AppendExtras(nil), nil, nil)
	f.Opaque = 1000 + uint32(vb)
	return f
}

func fromZero(vb uint16) mcbp.Frame { return streamFrame(vb, mcbp.StreamRequest{End: mcbp.EndOfTime}) }

// line formats a stream message.
func line(f mcbp.Frame) string {
	switch f.Op {
	case mcbp.OpDCPSnapshotMarker:
		m, err := mcbp.DecodeSnapshotMarker(f.Extras, f.Value)
		return fmt.Sprintf("snapshot %d-%d %d %v", m.Start, m.End, m.Flags, err)
	case mcbp.OpDCPMutation:
		m, err := mcbp.DecodeMutation(f.Extras)
		return fmt.Sprintf("mutation %d %s=%s %v", m.Seqno, f.Key, f.Value, err)
	case mcbp.OpDCPDeletion, mcbp.OpDCPExpiration:
		m, err := mcbp.DecodeDeletion(f.Extras)
		return fmt.Sprintf("%v %d %s %v", f.Op, m.Seqno, f.Key, err)
	case mcbp.OpDCPSeqnoAdvanced:
		s, err := mcbp.DecodeSeqnoAdvanced(f.Extras)
		return fmt.Sprintf("advanced %d %v", s, err)
	case mcbp.OpDCPStreamEnd:
		r, err := mcbp.DecodeStreamEnd(f.Extras)
		return fmt.Sprintf("end %v %v", r, err)
	}
	return f.Op.String()
}

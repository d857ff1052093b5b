package consensus

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

// FuzzHandshake: whatever a caller sends first is read without a panic and not beyond the handshake. An accepted
// handshake encodes to the same bytes, and the answer fits its length byte.
func FuzzHandshake(f *testing.F) {
	for _, who := range []handshake{
		{},
		{cluster: "0123456789abcdef", wants: "m1-0badcafe", id: "m2-00c0ffee", epoch: 1795223000},
		{wants: "m1-0badcafe", id: strings.Repeat("x", 255), epoch: 1 << 63},
	} {
		f.Add(who.encode())
	}
	f.Add([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	f.Add([]byte("TMRF\x01\xffabc"))
	f.Add([]byte("TMRF\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	own := &stream{id: "m1-0badcafe", rest: "https://m1:9500", clusterID: func() string { return "0123456789abcdef" },
		epoch:  func() uint64 { return 7 },
		member: func(id string) bool { return id == "m2-00c0ffee" }}
	f.Fuzz(func(t *testing.T, sent []byte) {
		r := bytes.NewReader(sent)
		who, err := readHandshake(r)
		if err != nil {
			return
		}
		if back := who.encode(); !bytes.Equal(back, sent[:len(sent)-r.Len()]) {
			t.Errorf("%x is taken for %+v, which is sent as %x", sent, who, back)
		}
		answer := own.answer(who)
		if back, err := readHandshakeReply(bytes.NewReader(answer.encode())); err != nil || back != answer {
			t.Errorf("the answer to %+v is %+v and is read as %+v, %v", who, answer, back, err)
		}
	})
}

// FuzzShort: the answer to a handshake is read without a panic and has the length of its length byte.
func FuzzShort(f *testing.F) {
	f.Add([]byte{0})
	f.Add([]byte("\x03abc"))
	f.Add(binary.BigEndian.AppendUint64(nil, 1<<63))
	f.Fuzz(func(t *testing.T, sent []byte) {
		text, err := readShort(bytes.NewReader(sent))
		if err == nil && (len(sent) == 0 || len(text) != int(sent[0]) || text != string(sent[1:1+len(text)])) {
			t.Errorf("%x is read as %q", sent, text)
		}
	})
}

package core

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"

	"tidemark/errcode"
	"tidemark/wire"
)

// TestRefusedDefinitionsAreLogged checks that a component's refusal of definitions is logged, once per reason, and that
// temporary failures are not.
func TestRefusedDefinitionsAreLogged(t *testing.T) {
	l := newCrowd(t, 1).lead
	var out bytes.Buffer
	l.membership.log = hclog.New(&hclog.LoggerOptions{Output: &out})
	n := l.components.indexers[0]
	problem := func(status int, code errcode.Code, detail string) error {
		return &wire.Problem{Status: status, Code: code, Detail: detail}
	}
	for i, s := range []struct {
		err    error
		logged string
	}{
		{errors.New("no answer"), ""},
		{problem(409, errcode.Fenced, "newer"), ""},
		{problem(503, errcode.Unavailable, "stopping"), ""},
		{problem(500, errcode.Internal, "its disk is full"), ""},
		{problem(413, errcode.BodyTooLarge, "more than 67108864 bytes"), "BODY_TOO_LARGE: more than 67108864 bytes"},
		{problem(413, errcode.BodyTooLarge, "more than 67108864 bytes"), ""},
		{errors.New("no answer"), ""},
		{problem(400, errcode.BadRequest, "CBOR body"), "BAD_REQUEST: CBOR body"},
		{nil, ""},
		{problem(400, errcode.BadRequest, "CBOR body"), "BAD_REQUEST: CBOR body"},
	} {
		out.Reset()
		l.membership.handed(&Handed{From: n.receiver, Addr: "http://i1", Err: s.err})
		if got := out.String(); s.logged == "" && got != "" || !strings.Contains(got, s.logged) ||
			s.logged != "" && !strings.Contains(got, "http://i1") {
			t.Errorf("answer %d, %v: the log has %q, want %q", i, s.err, got, s.logged)
		}
	}
}

package projector

import (
	"errors"
	"fmt"
	"testing"

	"tidemark/wire"
)

func TestShares(t *testing.T) {
	for _, c := range []struct {
		text string
		has  string // of 0 to 9
		bad  bool
	}{
		{text: "", has: "0123456789"},
		{text: "0-4", has: "01234"},
		{text: "3", has: "3"},
		{text: "0-1,5,8-4095", has: "01589"},
		{text: "4-3", bad: true},
		{text: "4096", bad: true},
		{text: "-3", bad: true},
		{text: "1,,2", bad: true},
		{text: "a", bad: true},
		{text: "0-511 ", bad: true},
	} {
		s, err := ParseShare(c.text)
		got := ""
		for v := range uint16(10) {
			if err == nil && s.Has(v) {
				got += fmt.Sprint(v)
			}
		}
		if errors.Is(err, ErrShare) != c.bad || got != c.has || err == nil && s.String() != c.text {
			t.Errorf("%q: has %s, %v; want %s, bad %v", c.text, got, err, c.has, c.bad)
		}
	}
}

// A projector with a share leaves the rest to others: it neither starts them nor tells their logs or seqnos.
func TestAShareIsKept(t *testing.T) {
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	var err error
	if w.p.cfg.Share, err = ParseShare("2-3,7"); err != nil { // nothing has looked at it yet
		t.Fatal(err)
	}
	w.define(1, 1)
	begun := ""
	for _, r := range w.start(1).Results {
		switch r.Outcome {
		case wire.StartBegun:
			begun += fmt.Sprint(r.VBucket)
		case wire.StartNotMine:
		default:
			t.Errorf("%+v", r)
		}
	}
	if begun != "237" {
		t.Errorf("begun: %s", begun)
	}
	logs, err := w.client.FailoverLogs(t.Context(), w.url, &wire.FailoverLogsRequest{Fence: w.fence(), Bucket: testBucket})
	if err != nil || len(logs.Logs) != 3 {
		t.Errorf("%+v, %v", logs, err)
	}
	seqnos, err := w.client.Seqnos(t.Context(), w.url, &wire.SeqnosRequest{Bucket: testBucket})
	if err != nil || fmt.Sprint(seqnos.VBuckets) != "[2 3 7]" && len(seqnos.VBuckets) != 3 {
		t.Errorf("%+v, %v", seqnos, err)
	}
	var s wire.ProjectorState
	if w.get("/v1/state", &s); s.Share != "2-3,7" {
		t.Errorf("share %q", s.Share)
	}
}

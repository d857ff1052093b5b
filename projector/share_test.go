package projector

import (
	"fmt"
	"testing"

	"tidemark/projector/core"
	"tidemark/wire"
)

// A projector with a share leaves the rest to others: it neither starts those streams nor reports their logs or
// seqnos.
func TestProjectorKeepsToItsShare(t *testing.T) {
	e := newEngine(t)
	w := newWorldAt(t, e.Addr())
	var err error
	if w.p.cfg.Share, err = core.ParseShare("2-3,7"); err != nil { // nothing has looked at it yet
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

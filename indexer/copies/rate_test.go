package copies

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/indexer/pace"
	"tidemark/keyversion"
)

// TestCatchupRate: data of a catchup stream is taken at the rate, over all connections; data of a backfill is taken
// at once; a wait ends with its connection, and its data is not taken.
func TestCatchupRate(t *testing.T) {
	t.Parallel()
	const rate, events, batches = 10_000, 1000, 6
	still := time.Unix(1000, 0) // the clock of the pace stands still: each batch waits for all before it
	n := testNode(hclog.NewNullLogger())
	n.Catchup = pace.New(rate, 0, func() time.Time { return still })
	k := &Bucket{node: n, name: "b", vbuckets: 4, in: newIntake(func() int64 { return 1 << 30 }), calls: newCalls()}
	batch := &keyversion.Batch{Events: make([]keyversion.Event, events)}
	sinks := []*sink{{k: k, hello: keyversion.Hello{Connections: 1}, side: true, catchup: true},
		{k: k, hello: keyversion.Hello{Connections: 1}, side: true, catchup: true}}
	box, began := k.in.boxes[1].batches, time.Now()
	for i := range batches {
		if err := sinks[i%2].Receive(t.Context(), batch, func() {}); err != nil {
			t.Fatal(err)
		}
	}
	if took, least := time.Since(began), time.Second*events*batches/rate; took < least || len(box) != batches {
		t.Errorf("%d batches of %d events after %s, %s at least at %d a second", len(box), events, took, least, rate)
	}
	owes := n.Catchup.Due()
	if err := (&sink{k: k, hello: keyversion.Hello{Connections: 1}, side: true}).Receive(t.Context(), batch,
		func() {}); err != nil {
		t.Fatal(err)
	}
	if len(box) != batches+1 || n.Catchup.Due() != owes {
		t.Errorf("a backfill counts towards the rate of catchups: %d batches, %v after %v", len(box),
			n.Catchup.Due(), owes)
	}
	gone, cancel := context.WithCancelCause(t.Context())
	cut := errors.New("the connection is cut")
	cancel(cut)
	if err := sinks[0].Receive(gone, batch, func() {}); !errors.Is(err, cut) || len(box) != batches+1 {
		t.Errorf("%v, %d batches", err, len(box))
	}
}

package coordinator

import (
	"cmp"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"

	"tidemark/errcode"
	"tidemark/fsm"
	"tidemark/indexerclient"
	"tidemark/internal/rpc"
	"tidemark/manager/coordinator/core"
	"tidemark/projectorclient"
	"tidemark/streams"
	"tidemark/wire"
)

// TestFencesAtAnAddress checks that each command is newer than all that were sent before to its address, whichever
// component they were meant for: the process there has seen them.
func TestFencesAtAnAddress(t *testing.T) {
	g := newGateway(Config{}, wire.Leader{}, hclog.NewNullLogger())
	open := func(to, instead core.Receiver, addr string, counter uint64) {
		g.Do(core.Open{To: to, Instead: instead, Addr: addr, Fence: wire.Fence{ClusterID: "c", Counter: counter}})
	}
	seen := map[string]uint64{}
	check := func(what string, to core.Receiver, addr string) {
		t.Helper()
		f := g.receiver(to).fences.next()
		if f.ClusterID != "c" || f.Counter <= seen[addr] {
			t.Errorf("%s: a command has the fence %+v, the process there has seen counter %d", what, f, seen[addr])
		}
		seen[addr] = f.Counter
	}
	open(1, 0, "x", 100)
	check("the first", 1, "x")
	open(2, 0, "y", 200)
	check("another one", 2, "y")
	open(3, 1, "y", 300) // the first moves to where the second was
	check("the first at the second's address", 3, "y")
	check("the second, which is there all the same", 2, "y")
	check("the first after it", 3, "y")
	open(4, 3, "y", 250) // its process has begun anew; a counter never moves back
	check("the first again", 4, "y")
	open(5, 4, "x", 400)
	check("the first back at its own address", 5, "x")
	check("the second", 2, "y")
}

// TestNothingIsAcknowledgedByAnother checks that every message to a component names the process that is meant, so that
// another one that listens at its address refuses the message, and that no refusal of this kind is taken for an answer.
func TestNothingIsAcknowledgedByAnother(t *testing.T) {
	var mu sync.Mutex
	var calls []string
	server := httptest.NewServer(rpc.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
		var req struct {
			Fence wire.Fence `json:"fence"`
			Boot  string     `json:"boot"`
		}
		if err := rpc.Read(r, &req); err != nil {
			return err
		}
		meant := cmp.Or(req.Fence.Boot, req.Boot)
		if meant != "meant" {
			t.Errorf("%s is meant for %q", r.URL.Path, meant)
		}
		mu.Lock()
		calls = append(calls, r.URL.Path)
		mu.Unlock()
		if err := wire.MeantFor(meant, "another"); err != nil {
			return err
		}
		rpc.Write(w, r, http.StatusOK, wire.OK{})
		return nil
	}))
	defer server.Close()
	projectors, indexers := projectorclient.New(4, nil), indexerclient.New(4, nil)
	defer projectors.Close()
	defer indexers.Close()
	machine := fsm.New(hclog.NewNullLogger(), func(err error) { t.Error(err) })
	g := newGateway(Config{Consensus: &log{t: t, machine: machine, id: "m"}, Projectors: projectors, Indexers: indexers},
		wire.Leader{}, hclog.NewNullLogger())
	g.Do(core.Open{To: 1, Projector: true, Addr: server.URL, Boot: "meant", Fence: wire.Fence{ClusterID: "c"}})
	g.Do(core.Open{To: 2, Addr: server.URL, Boot: "meant", Fence: wire.Fence{ClusterID: "c"}})
	refused := func(err error) bool { return err != nil && rpc.AsProblem(err).Code == errcode.AnotherProcess }
	none := func(in core.Input) bool { return in == nil }
	for _, c := range []struct {
		to      core.Receiver
		message core.Message
		ok      func(core.Input) bool
	}{
		{1, core.Hello{}, func(in core.Input) bool { return refused(in.(*core.ProjectorHelloAnswered).Err) }},
		{1, core.Push{}, func(in core.Input) bool { return refused(in.(*core.Handed).Err) }},
		{1, core.Probe{}, func(in core.Input) bool { return !in.(*core.Probed).Refused }},
		{1, core.FetchLogs{}, func(in core.Input) bool { return refused(in.(*core.LogsFetched).Err) }},
		{1, core.StartStreams{Starts: []streams.Start{{VBucket: 3}}}, func(in core.Input) bool {
			all := in.(*core.StreamsStarted).Results
			return len(all) == 1 && all[0].VBucket == 3 && all[0].Outcome == streams.Failed
		}},
		{1, core.StopStreams{}, none},
		{1, core.CheckBucket{}, func(in core.Input) bool {
			a := in.(*core.BucketChecked)
			return refused(a.Err) && !a.Unknown && a.Found == nil
		}},
		{1, core.RequestSync{}, func(in core.Input) bool { return refused(in.(*core.Synced).Err) }},
		{2, core.Hello{}, func(in core.Input) bool { return refused(in.(*core.IndexerHelloAnswered).Err) }},
		{2, core.Push{}, func(in core.Input) bool { return refused(in.(*core.Handed).Err) }},
		{2, core.Poll{}, none},
		{2, core.PublishStable{Newest: []wire.BucketStability{{Bucket: "b"}}}, none},
		{2, core.RollBack{}, none},
		{2, core.DropOrphans{Copies: []wire.OrphanRef{{Copy: 7}}}, func(in core.Input) bool {
			return refused(in.(*core.OrphansDropped).Err)
		}},
	} {
		calls = nil
		if in := g.Send(t.Context(), core.Send{To: c.to, Message: c.message}); !c.ok(in) {
			t.Errorf("%T, refused by another process, gives %+v", c.message, in)
		}
		if len(slices.Compact(calls)) != 1 {
			t.Errorf("%T makes the calls %v", c.message, calls)
		}
	}
}

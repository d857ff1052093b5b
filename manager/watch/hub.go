// Package watch streams the changes of the replicated state to any number of watchers, as server-sent events.
//
// A watcher receives one snapshot and then every change of the requested kinds in cas order, none missing and none
// twice, also across a reconnection to another manager, as long as that manager still holds the changes after the
// watcher's position; otherwise it gets a new snapshot with the reason. All events of one cas are delivered together.
// An update is encoded once for all watchers; per watcher there is only a position. Updates that occur several times
// a second (stability timestamps) are kept separately: they do not wake watchers that have not requested them, and do
// not displace other updates.
//
// The package never delays Apply, never waits for a watcher (one that is too slow gets an error and is dropped), and
// does not need a leader.
package watch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/fsm"
	"tidemark/statecontext"
)

// Bounds.
const (
	// MaxWatchers bounds the watchers of a manager: each is a connection and a goroutine, about 30 kB, plus the data
	// that it was given and has not taken yet: batchBytes of changes, or a snapshot.
	MaxWatchers = 4096
	// MaxLent bounds the bytes of snapshots that watchers have not taken yet, which may last as long as a stream. A
	// snapshot given to several watchers counts once, and a single one may be larger. MaxLentPerAddress bounds them per
	// remote address.
	MaxLent           = 256 << 20
	MaxLentPerAddress = MaxLent / 4
	// MaxPerAddress bounds the watchers from one address, so that one host cannot use all of them.
	MaxPerAddress = 2048
	// Quiet and loud updates that are kept for watchers that resume or are slow.
	quietUnits, quietBytes = 8192, 16 << 20
	loudUnits, loudBytes   = 4096, 2 << 20
	// batchBytes bounds the bytes that a watcher gets at once.
	batchBytes = 64 << 10
	// snapshotFor is how long an encoded snapshot is reused for other watchers of the same kinds.
	snapshotFor = time.Second
	// snapshotsKept bounds the encoded snapshots: the sets of kinds requested at the same time.
	snapshotsKept = 4
	// Heartbeat is the interval at which an idle stream sends a sign of life with its position.
	Heartbeat = 5 * time.Second
	// BehindWait is how long a watcher with a newer position than this manager waits for it to catch up.
	BehindWait = 3 * time.Second
)

var (
	// ErrClosed is wrapped if the hub has ended.
	ErrClosed = errors.New("this manager is stopping")
	// ErrSlow is wrapped if a watcher needs updates that are no longer kept.
	ErrSlow = errors.New("the watcher reads too slowly")
	// ErrBehind is wrapped if this manager has not seen everything that the watcher has.
	ErrBehind = errors.New("this manager is behind the watcher")
	// ErrFull is wrapped if there are MaxWatchers watchers, or MaxLent bytes are lent to them.
	ErrFull = errors.New("too many watchers")
	// ErrAddressFull is wrapped if there are MaxPerAddress watchers from one address.
	ErrAddressFull = errors.New("too many watchers from one address")
)

// Machine is the source of updates; *fsm.FSM implements it.
type Machine interface {
	Subscribe() *fsm.Subscription
	Feed(restores, since uint64) fsm.Feed
}

// Hub turns updates into events and passes them to watchers. Use New, and call Run.
type Hub struct {
	machine Machine
	log     hclog.Logger
	now     func() time.Time

	mu         sync.Mutex // guards the fields below; held for short times only
	state      *statecontext.State
	restores   uint64
	lineage    Lineage
	generation uint64 // rises when watchers have to start again from a snapshot
	why        reason // reason of the newest generation
	quiet      ring
	loud       ring
	calm       chan struct{} // closed at a quiet unit
	every      chan struct{} // closed at any unit
	closed     bool
	watchers   int
	from       map[string]int
	lent       int            // bytes of snapshots that watchers have not taken yet
	lentAt     map[string]int // the same by address

	snapMu    sync.Mutex // one snapshot is encoded at a time
	snapshots []*encoded
}

// reason is why a watcher gets a snapshot.
type reason struct{ code, detail string }

// New returns a Hub.
func New(machine Machine, logger hclog.Logger) *Hub {
	h := &Hub{machine: machine, log: logger, now: time.Now, state: statecontext.New(), calm: make(chan struct{}),
		every: make(chan struct{}),
		from:  map[string]int{}, lentAt: map[string]int{},
		quiet: ring{maxUnits: quietUnits, maxBytes: quietBytes}, loud: ring{maxUnits: loudUnits, maxBytes: loudBytes}}
	return h
}

// Run reads updates until ctx ends, and then ends all watchers.
func (h *Hub) Run(ctx context.Context) error {
	changes := h.machine.Subscribe()
	defer changes.Close()
	for {
		h.pull()
		select {
		case <-ctx.Done():
			h.mu.Lock()
			defer h.mu.Unlock()
			h.closed = true
			h.wake(true)
			return nil
		case <-changes.C():
		}
	}
}

// pull reads new updates. Only Run calls it, so the fields that it reads do not change meanwhile.
func (h *Hub) pull() {
	feed := h.machine.Feed(h.restores, h.state.CAS())
	lineage := Lineage{Cluster: feed.State.ClusterID(), Epoch: feed.State.Epoch()}
	switch {
	case feed.Restores != h.restores:
		h.reset(feed, lineage, reason{"restored", "this manager's state was replaced by a snapshot"})
		return
	// otherwise the cluster has just got its id, and earlier updates belong to its history
	case lineage != h.lineage && h.lineage.Cluster != "":
		h.reset(feed, lineage, reason{"epoch", fmt.Sprintf("the cluster is now %s in epoch %d", lineage.Cluster,
			lineage.Epoch)})
		return
	case !feed.Held:
		h.reset(feed, lineage, reason{"overrun", "more changes came at once than this manager buffers"})
		return
	case len(feed.Events) == 0:
		return
	}
	for i := range feed.Events {
		if feed.Events[i].Restored {
			h.reset(feed, lineage, reason{"epoch", "backup restored"})
			return
		}
	}
	units := make([]unit, 0, len(feed.Events))
	for events := feed.Events; len(events) > 0; {
		n := 1
		for n < len(events) && events[n].CAS == events[0].CAS {
			n++
		}
		u, err := newUnit(events[:n], lineage)
		if err != nil { // should not happen; but no update may be skipped silently
			h.log.Error("update cannot be encoded; watchers start again from a snapshot", "cas", events[0].CAS, "error", err)
			h.reset(feed, lineage, reason{"overrun", err.Error()})
			return
		}
		units, events = append(units, u), events[n:]
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state, h.lineage = feed.State, lineage
	quiet, loudKinds := false, LoudKinds()
	for _, u := range units {
		if u.kinds&^loudKinds == 0 {
			h.loud.push(u)
		} else {
			h.quiet.push(u)
			quiet = true
		}
	}
	h.wake(quiet)
}

// reset starts again from a state.
func (h *Hub) reset(feed fsm.Feed, lineage Lineage, why reason) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state, h.restores, h.lineage, h.why = feed.State, feed.Restores, lineage, why
	h.generation++
	h.quiet.reset(feed.State.CAS())
	h.loud.reset(feed.State.CAS())
	h.wake(true)
}

// wake wakes the waiting watchers. The caller holds h.mu.
func (h *Hub) wake(quiet bool) {
	close(h.every)
	h.every = make(chan struct{})
	if quiet {
		close(h.calm)
		h.calm = make(chan struct{})
	}
}

// floor returns the cas above which all updates of these kinds are held. The caller holds h.mu.
func (h *Hub) floor(kinds Kinds) uint64 {
	if kinds&LoudKinds() != 0 {
		return max(h.quiet.floor, h.loud.floor)
	}
	return h.quiet.floor
}

// Watchers returns the present number of watchers.
func (h *Hub) Watchers() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.watchers
}

// Request describes what a watcher wants.
type Request struct {
	// Since is the position up to which the watcher has seen the changes; nil: it wants a snapshot first.
	Since *Position
	Kinds Kinds
	// From is the watcher's address, for MaxPerAddress.
	From string
}

// Join admits a watcher; the caller must close it. If its position is newer than this manager's state, Join waits for
// the state, up to BehindWait. Errors wrap ErrFull, ErrAddressFull, ErrBehind, ErrClosed, or ctx's error.
func (h *Hub) Join(ctx context.Context, r Request) (*Watcher, error) {
	if err := h.admit(r.From); err != nil {
		return nil, err
	}
	w := &Watcher{hub: h, kinds: r.Kinds, from: r.From}
	err := h.place(ctx, w, r.Since)
	if err == nil && w.needs != nil {
		h.mu.Lock()
		err = h.room(r.From, 1)
		h.mu.Unlock()
	}
	if err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

func (h *Hub) admit(from string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.watchers >= MaxWatchers:
		return fmt.Errorf("%w: this manager has %d watchers, its limit", ErrFull, h.watchers)
	case h.from[from] >= MaxPerAddress:
		return fmt.Errorf("%w: %d watchers are from %s, the limit per address", ErrAddressFull, h.from[from], from)
	}
	h.watchers++
	h.from[from]++
	return nil
}

// place determines where a watcher begins.
func (h *Hub) place(ctx context.Context, w *Watcher, since *Position) error {
	late := time.NewTimer(BehindWait)
	defer late.Stop()
	for {
		h.mu.Lock()
		changed, behind := h.every, h.behind(since)
		if h.closed {
			h.mu.Unlock()
			return ErrClosed
		}
		if behind == nil {
			h.begin(w, since)
			h.mu.Unlock()
			return nil
		}
		h.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", behind, ctx.Err())
		case <-late.C:
			h.mu.Lock()
			defer h.mu.Unlock()
			if since == nil || since.Cluster != "" || h.lineage.Cluster == "" {
				return behind
			}
			w.needs = &reason{"future", fmt.Sprintf("cas %d is beyond cas %d of this manager in cluster %s: it comes from "+
				"another cluster, or this manager is behind",
				since.CAS, h.state.CAS(), h.lineage.Cluster)}
			return nil
		}
	}
}

// behind returns why a watcher has to wait, or nil if it need not. The caller holds h.mu.
func (h *Hub) behind(since *Position) error {
	switch {
	case h.lineage.Cluster == "":
		return fmt.Errorf("%w: it belongs to no cluster yet", ErrBehind)
	case since == nil || since.Cluster != "" && since.Cluster != h.lineage.Cluster:
		return nil
	case since.Cluster != "" && since.Epoch > h.lineage.Epoch:
		return fmt.Errorf("%w: it is in epoch %d, the watcher is in epoch %d; use another "+
			"manager", ErrBehind, h.lineage.Epoch,
			since.Epoch)
	case since.Cluster != "" && since.Epoch < h.lineage.Epoch:
		return nil
	case since.CAS > h.state.CAS():
		return fmt.Errorf("%w: it is at cas %d, the watcher is at %d; use another manager", ErrBehind, h.state.CAS(),
			since.CAS)
	}
	return nil
}

// begin sets a watcher to its position, or records why it needs a snapshot. The caller holds h.mu.
func (h *Hub) begin(w *Watcher, since *Position) {
	w.generation, w.lineage = h.generation, h.lineage
	switch {
	case since == nil || since.CAS == 0:
		w.needs = &reason{"start", "no position was given"}
	case since.Cluster != "" && since.Cluster != h.lineage.Cluster:
		w.needs = &reason{"other_cluster", fmt.Sprintf("the position belongs to cluster %s, this is %s", since.Cluster,
			h.lineage.Cluster)}
	case since.Cluster != "" && since.Epoch != h.lineage.Epoch:
		w.needs = &reason{"epoch", fmt.Sprintf("the position belongs to epoch %d, the cluster is in epoch %d", since.Epoch,
			h.lineage.Epoch)}
	case since.CAS < h.floor(w.kinds):
		w.needs = &reason{"not_held", fmt.Sprintf("not all changes after cas %d are kept, only those after %d",
			since.CAS, h.floor(w.kinds))}
	default:
		w.cas = since.CAS
	}
}

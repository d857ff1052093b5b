// Package watch serves the changes of the replicated state to any number of watchers, as server-sent events.
//
// What it promises: a watcher sees one snapshot and then every change of the kinds that it asked for, in cas order,
// none missing, none twice, also across a reconnection to another manager, as long as its position is held here; else
// it is given a new snapshot that says why. All events of one cas come together. An update is encoded once, whoever
// watches; of a watcher there is only its position. Updates that come several times a second (stability timestamps) are
// kept apart: they wake nobody who did not ask for them and crowd nothing else out.
//
// What it never does: hold up Apply, wait for a watcher (who is too slow is told so and dropped), or need a leader.
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
	// MaxWatchers bounds all watchers of a manager: each is a connection and a goroutine, about 30 kB, beside what it was
	// given and has not taken yet: batchBytes of changes, or a snapshot.
	MaxWatchers = 4096
	// MaxLent bounds the bytes of snapshots that watchers have not taken yet, which may last for as long as a stream does.
	// One that several are given at the same time counts once, and one alone may be larger. MaxLentPerAddress bounds those
	// of one address likewise.
	MaxLent           = 256 << 20
	MaxLentPerAddress = MaxLent / 4
	// MaxPerAddress bounds the watchers from one address, so that one host cannot take all places.
	MaxPerAddress = 2048
	// quiet and loud updates that are kept for who resumes or is slow.
	quietUnits, quietBytes = 8192, 16 << 20
	loudUnits, loudBytes   = 4096, 2 << 20
	// batchBytes bounds what a watcher is given at once.
	batchBytes = 64 << 10
	// snapshotFor is how long an encoded snapshot serves others who ask for the same kinds.
	snapshotFor = time.Second
	// snapshotsKept bounds encoded snapshots: sets of kinds that are asked for at the same time.
	snapshotsKept = 4
	// Heartbeat is how often a silent stream says that it lives and how far it is.
	Heartbeat = 5 * time.Second
	// BehindWait is how long a watcher that has seen more than this manager is kept waiting for it.
	BehindWait = 3 * time.Second
)

var (
	// ErrClosed is wrapped when the hub has ended.
	ErrClosed = errors.New("this manager stops")
	// ErrSlow is wrapped when a watcher is too slow for what is kept.
	ErrSlow = errors.New("the watcher is too slow")
	// ErrBehind is wrapped when this manager has not seen yet what the watcher has.
	ErrBehind = errors.New("this manager is behind")
	// ErrFull is wrapped when MaxWatchers watch already, or are given MaxLent bytes.
	ErrFull = errors.New("too many watchers")
	// ErrAddressFull is wrapped when MaxPerAddress watch from one address already.
	ErrAddressFull = errors.New("too many watchers from one address")
)

// Machine is where updates come from; *fsm.FSM is one.
type Machine interface {
	Subscribe() *fsm.Subscription
	Feed(restores, since uint64) fsm.Feed
}

// Hub turns updates into events and hands them to watchers. Use New, and Run it.
type Hub struct {
	machine Machine
	log     hclog.Logger
	now     func() time.Time

	mu         sync.Mutex // guards what follows; held for moments only
	state      *statecontext.State
	restores   uint64
	lineage    Lineage
	generation uint64 // rises when watchers have to begin anew
	why        reason // of the newest generation
	quiet      ring
	loud       ring
	calm       chan struct{} // closed when a quiet unit comes
	every      chan struct{} // closed when any unit comes
	closed     bool
	watchers   int
	from       map[string]int
	lent       int            // bytes of snapshots that watchers have not taken yet
	lentAt     map[string]int // the same by address

	snapMu    sync.Mutex // one snapshot is encoded at a time
	snapshots []*encoded
}

// reason is why a watcher is given a snapshot.
type reason struct{ code, detail string }

// New makes a Hub.
func New(machine Machine, logger hclog.Logger) *Hub {
	h := &Hub{machine: machine, log: logger, now: time.Now, state: statecontext.New(), calm: make(chan struct{}),
		every: make(chan struct{}),
		from:  map[string]int{}, lentAt: map[string]int{},
		quiet: ring{maxUnits: quietUnits, maxBytes: quietBytes}, loud: ring{maxUnits: loudUnits, maxBytes: loudBytes}}
	return h
}

// Run takes over updates until ctx ends; then all watchers are told.
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

// pull takes over what is new. Only Run calls it, so that what it reads of the hub does not change meanwhile.
func (h *Hub) pull() {
	feed := h.machine.Feed(h.restores, h.state.CAS())
	lineage := Lineage{Cluster: feed.State.ClusterID(), Epoch: feed.State.Epoch()}
	switch {
	case feed.Restores != h.restores:
		h.reset(feed, lineage, reason{"restored", "the state of this manager was replaced as a whole"})
		return
	// else the cluster has got its id: what was before is its history
	case lineage != h.lineage && h.lineage.Cluster != "":
		h.reset(feed, lineage, reason{"epoch", fmt.Sprintf("the cluster is %s in epoch %d now", lineage.Cluster,
			lineage.Epoch)})
		return
	case !feed.Held:
		h.reset(feed, lineage, reason{"overrun", "more changes came at once than this manager keeps"})
		return
	case len(feed.Events) == 0:
		return
	}
	for i := range feed.Events {
		if feed.Events[i].Restored {
			h.reset(feed, lineage, reason{"epoch", "a backup was restored"})
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
		if err != nil { // it cannot be; and nobody may miss an update in silence
			h.log.Error("an update cannot be encoded; watchers begin anew", "cas", events[0].CAS, "error", err)
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

// reset begins anew from a state.
func (h *Hub) reset(feed fsm.Feed, lineage Lineage, why reason) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.state, h.restores, h.lineage, h.why = feed.State, feed.Restores, lineage, why
	h.generation++
	h.quiet.reset(feed.State.CAS())
	h.loud.reset(feed.State.CAS())
	h.wake(true)
}

// wake lets go who waits. h.mu is held.
func (h *Hub) wake(quiet bool) {
	close(h.every)
	h.every = make(chan struct{})
	if quiet {
		close(h.calm)
		h.calm = make(chan struct{})
	}
}

// floor is the cas above which everything of these kinds is held. h.mu is held.
func (h *Hub) floor(kinds Kinds) uint64 {
	if kinds&LoudKinds() != 0 {
		return max(h.quiet.floor, h.loud.floor)
	}
	return h.quiet.floor
}

// Watchers is how many watch now.
func (h *Hub) Watchers() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.watchers
}

// Request is what a watcher wants.
type Request struct {
	// Since is what it has seen already; nil: nothing, it wants a snapshot first.
	Since *Position
	Kinds Kinds
	// From is the watcher's address, for MaxPerAddress.
	From string
}

// Join admits a watcher; it has to be closed. One that has seen more than this manager waits for it, at most
// BehindWait. Errors wrap ErrFull, ErrAddressFull, ErrBehind, ErrClosed, or ctx's error.
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
		return fmt.Errorf("%w: %d watch this manager, the most it takes", ErrFull, h.watchers)
	case h.from[from] >= MaxPerAddress:
		return fmt.Errorf("%w: %d watch from %s, the most that is taken", ErrAddressFull, h.from[from], from)
	}
	h.watchers++
	h.from[from]++
	return nil
}

// place finds out where a watcher begins.
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
			w.needs = &reason{"future", fmt.Sprintf("cas %d is beyond cas %d, which cluster %s has here: it is of another "+
				"cluster, or this manager is behind",
				since.CAS, h.state.CAS(), h.lineage.Cluster)}
			return nil
		}
	}
}

// behind returns why a watcher has to wait, nil when it has not. h.mu is held.
func (h *Hub) behind(since *Position) error {
	switch {
	case h.lineage.Cluster == "":
		return fmt.Errorf("%w: it does not know its cluster yet", ErrBehind)
	case since == nil || since.Cluster != "" && since.Cluster != h.lineage.Cluster:
		return nil
	case since.Cluster != "" && since.Epoch > h.lineage.Epoch:
		return fmt.Errorf("%w: it is in epoch %d, the watcher has seen %d; ask another manager", ErrBehind, h.lineage.Epoch,
			since.Epoch)
	case since.Cluster != "" && since.Epoch < h.lineage.Epoch:
		return nil
	case since.CAS > h.state.CAS():
		return fmt.Errorf("%w: it is at cas %d, the watcher has seen %d; ask another manager", ErrBehind, h.state.CAS(),
			since.CAS)
	}
	return nil
}

// begin puts a watcher at its position, or notes why it needs a snapshot. h.mu is held.
func (h *Hub) begin(w *Watcher, since *Position) {
	w.generation, w.lineage = h.generation, h.lineage
	switch {
	case since == nil || since.CAS == 0:
		w.needs = &reason{"start", "nothing was seen before"}
	case since.Cluster != "" && since.Cluster != h.lineage.Cluster:
		w.needs = &reason{"other_cluster", fmt.Sprintf("the position is of cluster %s, this is %s", since.Cluster,
			h.lineage.Cluster)}
	case since.Cluster != "" && since.Epoch != h.lineage.Epoch:
		w.needs = &reason{"epoch", fmt.Sprintf("the position is of epoch %d, the cluster is in epoch %d", since.Epoch,
			h.lineage.Epoch)}
	case since.CAS < h.floor(w.kinds):
		w.needs = &reason{"not_held", fmt.Sprintf("changes after cas %d are not all held any more, only those after %d",
			since.CAS, h.floor(w.kinds))}
	default:
		w.cas = since.CAS
	}
}

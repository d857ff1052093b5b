package watch

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tidemark/statecontext"
)

// ErrRequest is wrapped if kinds or a position cannot be parsed.
var ErrRequest = errors.New("bad watch request")

// Kinds is a set of kinds of events.
type Kinds uint32

func kindBit(k statecontext.EventKind) Kinds {
	if i := slices.Index(statecontext.EventKinds(), k); i >= 0 {
		return 1 << i
	}
	return 0
}

// AllKinds returns the set of all kinds.
func AllKinds() Kinds { return 1<<len(statecontext.EventKinds()) - 1 }

// LoudKinds returns the kinds that occur several times a second (statecontext.EventKind.Loud).
func LoudKinds() (set Kinds) {
	for _, k := range statecontext.EventKinds() {
		if k.Loud() {
			set |= kindBit(k)
		}
	}
	return set
}

// Has reports whether the kind is in the set.
func (s Kinds) Has(k statecontext.EventKind) bool { return s&kindBit(k) != 0 }

// ParseKinds parses a comma-separated list; "" means every kind except the loud ones, "all" means every kind. Errors
// wrap ErrRequest and list the valid kinds.
func ParseKinds(text string) (set Kinds, err error) {
	if text == "" {
		return AllKinds() &^ LoudKinds(), nil
	}
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		bit := kindBit(statecontext.EventKind(name))
		if name == "all" {
			bit = AllKinds()
		}
		if bit == 0 {
			return 0, fmt.Errorf("%w: kinds=%s: %q is unknown; want all or some of %s", ErrRequest, text, name, kindNames())
		}
		set |= bit
	}
	return set, nil
}

func kindNames() string {
	var names []string
	for _, k := range statecontext.EventKinds() {
		names = append(names, string(k))
	}
	return strings.Join(names, ", ")
}

// Lineage identifies one history of cas values: within it, one cas denotes the same state on every manager.
type Lineage struct {
	Cluster string
	Epoch   uint64
}

// Position is how far a watcher has come: it has seen every change up to CAS. A position without a cluster (as users
// type it) refers to the cluster that it is sent to.
type Position struct {
	CAS uint64
	Lineage
}

// String returns the form used in SSE ids and in ?since=: cas@cluster.epoch.
func (p Position) String() string {
	if p.Cluster == "" {
		return strconv.FormatUint(p.CAS, 10)
	}
	return fmt.Sprintf("%d@%s.%d", p.CAS, p.Cluster, p.Epoch)
}

// maxPosition bounds the text of a position in bytes: the name of a cluster has at most 220.
const maxPosition = 300

// ParsePosition parses the result of String. Errors wrap ErrRequest.
func ParsePosition(text string) (p Position, err error) {
	bad := func() (Position, error) {
		return Position{}, fmt.Errorf("%w: position %.40q: want a cas like 87, or an event's id like 87@cluster.epoch",
			ErrRequest, text)
	}
	if len(text) > maxPosition {
		return bad()
	}
	cas, lineage, found := strings.Cut(text, "@")
	if p.CAS, err = strconv.ParseUint(cas, 10, 64); err != nil {
		return bad()
	}
	if !found {
		return p, nil
	}
	dot := strings.LastIndexByte(lineage, '.')
	if dot < 1 {
		return bad()
	}
	p.Cluster = lineage[:dot]
	if p.Epoch, err = strconv.ParseUint(lineage[dot+1:], 10, 64); err != nil {
		return bad()
	}
	return p, nil
}

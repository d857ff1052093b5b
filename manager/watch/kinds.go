package watch

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tidemark/statecontext"
)

// ErrRequest is wrapped when kinds or a position cannot be read.
var ErrRequest = errors.New("bad watch request")

// Kinds is a set of kinds of events.
type Kinds uint32

func kindBit(k statecontext.EventKind) Kinds {
	if i := slices.Index(statecontext.EventKinds(), k); i >= 0 {
		return 1 << i
	}
	return 0
}

// AllKinds is every kind.
func AllKinds() Kinds { return 1<<len(statecontext.EventKinds()) - 1 }

// LoudKinds are those that come several times a second (statecontext.EventKind.Loud).
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

// ParseKinds reads a list separated by commas; "" is every kind but the loud ones, "all" is every kind. Errors wrap
// ErrRequest and list what there is.
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
			return 0, fmt.Errorf("%w: kinds=%s: %q is none of all, %s", ErrRequest, text, name, kindNames())
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

// Lineage names one history of cas values: within it, one cas is one state, on every manager.
type Lineage struct {
	Cluster string
	Epoch   uint64
}

// Position is how far somebody has watched: it knows everything up to CAS. Without a cluster (what people type) it is
// taken to be of the cluster that is asked.
type Position struct {
	CAS uint64
	Lineage
}

// String is the form of SSE ids and of ?since=: cas@cluster.epoch.
func (p Position) String() string {
	if p.Cluster == "" {
		return strconv.FormatUint(p.CAS, 10)
	}
	return fmt.Sprintf("%d@%s.%d", p.CAS, p.Cluster, p.Epoch)
}

// maxPosition bounds the text of a position in bytes: a cluster's name is at most 220.
const maxPosition = 300

// ParsePosition reads what String gives. Errors wrap ErrRequest.
func ParsePosition(text string) (p Position, err error) {
	bad := func() (Position, error) {
		return Position{}, fmt.Errorf("%w: position %.40q: want a cas as 87, or an event's id as 87@cluster.epoch",
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

package statecontext

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"tidemark/errcode"
)

// TestOlderProgram: a program that does not support the next level reads everything from a cluster at its own level,
// even if a newer program wrote it, and nothing from a cluster at the next level; its error says what to install.
func TestOlderProgram(t *testing.T) {
	const old = FormatLevel
	n := cluster(t)
	for i, data := range n.log {
		if _, err := DecodeUpTo(old, data); err != nil {
			t.Fatalf("entry %d: %v", i, err)
		}
	}
	if _, err := ReadSnapshotUpTo(old, bytes.NewReader(snapshot(t, n.state))); err != nil {
		t.Fatal(err)
	}
	n.refuse(&Reserved{}, errcode.FormatNotAllowed) // the level is not raised yet
	data, err := EncodeAs("7.8.9", Command{Body: &SetFormatLevel{Level: NextLevel}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := DecodeUpTo(old, data); !errors.Is(err, ErrUndecodable) || !errors.Is(err, ErrFormatLevel) ||
		!strings.Contains(err.Error(), "install tidemark 7.8.9") {
		t.Fatalf("the entry that raises the level, read by an older program: %v", err)
	}
	if _, err := DecodeUpTo(NextLevel, data); err != nil {
		t.Fatal(err)
	}
	n.must(&RegisterManager{Manager: Manager{ID: "old", FormatLevel: old}})
	n.must(&RegisterManager{Manager: Manager{ID: "m1-aa", Name: "m1", FormatLevel: NextLevel}})
	n.refuse(&SetFormatLevel{Level: NextLevel}, errcode.FormatNotAllowed) // the manager would stop
	n.must(&RemoveManager{ID: "old"})
	n.must(&SetFormatLevel{Level: NextLevel})
	n.refuse(&SetFormatLevel{Level: old}, errcode.FormatNotAllowed)
	n.refuse(&RegisterManager{Manager: Manager{ID: "old", Name: "x", FormatLevel: old}}, errcode.FormatNotAllowed)
	n.must(&RegisterManager{Manager: Manager{ID: "new", FormatLevel: NextLevel}})
	n.must(&Reserved{})
	if _, err := ReadSnapshotUpTo(old, bytes.NewReader(snapshot(t, n.state))); !errors.Is(err, ErrSnapshotVersion) ||
		!errors.Is(err, ErrFormatLevel) {
		t.Fatalf("a snapshot of a raised cluster, read by an older program: %v", err)
	}
	if _, err := ReadSnapshotUpTo(NextLevel, bytes.NewReader(snapshot(t, n.state))); err != nil {
		t.Fatal(err)
	}
	// An old kind keeps its old format.
	for _, b := range []Body{&RegisterProjector{Projector: Projector{ID: "p"}}, &DropIndex{ID: 1}} {
		if data, err := Encode(Command{Body: b}); err != nil || data[0] != 1 {
			t.Fatalf("%T is encoded in format %d, %v", b, data[0], err)
		}
	}
	if data, err := Encode(Command{Body: &Reserved{}}, Command{Body: &DropIndex{ID: 1}}); err != nil || data[0] != 2 {
		t.Fatalf("format %d, %v", data[0], err)
	}
}

// TestKindsNeedTheirFormat: an entry whose format byte is older than its commands was not written by any program and
// is refused.
func TestKindsNeedTheirFormat(t *testing.T) {
	for _, b := range []Body{&Reserved{}, &SetFormatLevel{Level: NextLevel}} {
		raw := appendCommand(nil, &Command{Body: b})
		if _, err := Decode(seal(appendBytes([]byte{0, 1}, raw))); !errors.Is(err, ErrUndecodable) ||
			!strings.Contains(err.Error(), "is in an entry of format 1") {
			t.Errorf("%T in an entry of format 1: %v", b, err)
		}
	}
}

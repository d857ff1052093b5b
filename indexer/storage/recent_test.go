package storage

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// TestRecent: an entry that is found is the newest that was noted. An entry that is not found was never noted, or
// belongs to rotations that are written and was evicted; otherwise sure returns false.
func TestRecent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type noted struct {
			value    string
			deleted  bool
			rotation uint64
		}
		r, want, rotation, written := newRecent(), map[string]noted{}, uint64(1), uint64(0)
		lost := uint64(0) // rotation under which entries were dropped
		for range rapid.IntRange(1, 600).Draw(t, "steps") {
			switch rapid.IntRange(0, 40).Draw(t, "step") {
			case 0:
				rotation++
			case 1:
				written = rapid.Uint64Range(written, rotation-1).Draw(t, "written")
				r.written(written)
			case 2, 3:
				before, some := r.size(), r.stored > 0
				if evicted := r.evict(); evicted != some || evicted && r.size() >= before {
					t.Fatalf("evicted %v: %d bytes, then %d", evicted, before, r.size())
				}
			case 4:
				if rapid.IntRange(0, 9).Draw(t, "forget") == 0 {
					r.forget(rotation)
					want, lost = map[string]noted{}, rotation
				}
			default:
				key := fmt.Sprintf("document %d", rapid.IntRange(0, 400).Draw(t, "key"))
				value := rapid.StringN(0, 40, 100).Draw(t, "value")
				deleted := rapid.Bool().Draw(t, "deleted")
				r.note(rotation, []byte(key), []byte(value), deleted)
				want[key] = noted{value, deleted, rotation}
			}
		}
		if r.sure() != (lost <= written) {
			t.Fatalf("sure: %v; forgotten under %d, written up to %d", r.sure(), lost, written)
		}
		if rapid.Bool().Draw(t, "all") {
			for r.evict() {
			}
			if r.bytes != 0 || r.stored != 0 {
				t.Fatalf("%d bytes of %d chunks are in tables, all are evicted", r.bytes, r.stored)
			}
		}
		used := 0
		for i := range 420 {
			key := fmt.Sprintf("document %d", i)
			w, ok := want[key]
			got, found := r.find([]byte(key))
			if found {
				used++
			}
			switch {
			case found != ok && (found || w.rotation > written):
				t.Fatalf("%s: found %v, want %+v", key, found, w)
			case found && ((got == nil) != w.deleted || string(got) != w.value && !w.deleted):
				t.Fatalf("%s: %q, want %+v", key, got, w)
			}
		}
		if used != r.used {
			t.Fatalf("%d keys are found, %d counted", used, r.used)
		}
	})
}

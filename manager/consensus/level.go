package consensus

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// levelKey is the key of the highest format level that the state has had, and of the version that recorded it.
var levelKey = []byte("tidemark-format-level")

// checkLevel refuses data of a format level on which this program would have to stop sooner or later.
func (st *storage) checkLevel() error {
	stored, err := st.store.Get(levelKey)
	if errors.Is(err, raftboltdb.ErrKeyNotFound) || err == nil && len(stored) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	level, version, _ := strings.Cut(string(stored), " ")
	if have, err := strconv.ParseUint(level, 10, 64); err != nil || have > st.cfg.FormatLevel {
		return fmt.Errorf("%w: the cluster is at format level %s, this program supports up to %d: install tidemark %s, "+
			"which ran here, or a newer version",
			ErrFormatTooNew, level, st.cfg.FormatLevel, version)
	}
	return nil
}

// NoteFormatLevel records the state's format level beside the log, once for each level, so that an older program
// refuses to start on it.
func (st *storage) NoteFormatLevel() error {
	level := st.fsm.State().FormatLevel()
	if level <= st.noted.Load() {
		return nil
	}
	if err := st.store.Set(levelKey, []byte(strconv.FormatUint(level, 10)+" "+st.cfg.Version)); err != nil {
		return fmt.Errorf("%w: %w", ErrStore, err)
	}
	st.noted.Store(level)
	return nil
}

// FormatLevel returns the newest format level that this node supports.
func (b *base) FormatLevel() uint64 { return b.cfg.FormatLevel }

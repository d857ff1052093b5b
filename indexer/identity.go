package indexer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"tidemark/index"
	"tidemark/wire"
)

const (
	identityFile    = "identity.json"
	definitionsFile = "definitions.json"
)

// identityState is who the indexer is, for ever, and whom it obeys. It lies in the data folder.
type identityState struct {
	Format    int          `json:"format"`
	UUID      string       `json:"uuid"`
	ClusterID string       `json:"cluster_id"`
	Node      index.NodeID `json:"node"`
	Fence     wire.Fence   `json:"fence"` // highest seen; the counter counts within a run only
}

type identity struct {
	dir string
	mu  sync.Mutex
	st  identityState
}

const identityFormat = 1

// loadIdentity reads who we are, or makes it up and stores it.
func loadIdentity(dir string) (*identity, error) {
	id := &identity{dir: dir}
	err := readJSON(dir, identityFile, &id.st)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		uuid, err := newID(16)
		if err != nil {
			return nil, err
		}
		id.st = identityState{Format: identityFormat, UUID: uuid}
		return id, writeJSON(dir, identityFile, id.st)
	case err != nil:
		return nil, fmt.Errorf("who this indexer is: %w", err)
	case id.st.Format != identityFormat || id.st.UUID == "":
		return nil, fmt.Errorf("%s: format %d, this program knows %d", filepath.Join(dir, identityFile), id.st.Format,
			identityFormat)
	}
	return id, nil
}

func (id *identity) get() identityState {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.st
}

// registered takes over what the leader has assigned.
func (id *identity) registered(r *wire.RegisterReply) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.st.ClusterID != "" && id.st.ClusterID != r.ClusterID {
		return fmt.Errorf("%w: the managers are of cluster %q, this data folder belongs to %q", wire.ErrForeignCluster,
			r.ClusterID, id.st.ClusterID)
	}
	if id.st.ClusterID == r.ClusterID && id.st.Node == r.Node {
		return nil
	}
	next := id.st
	next.ClusterID, next.Node = r.ClusterID, r.Node
	if err := writeJSON(id.dir, identityFile, next); err != nil {
		return err
	}
	id.st = next
	return nil
}

// admit checks a command's fence. A new leader is stored before its first command is obeyed.
func (id *identity) admit(f wire.Fence) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	highest, err := id.st.Fence.Admit(f)
	if err != nil {
		return err
	}
	if id.st.ClusterID != "" && f.ClusterID != id.st.ClusterID {
		return fmt.Errorf("%w: from %q, this one belongs to %q", wire.ErrForeignCluster, f.ClusterID, id.st.ClusterID)
	}
	old := id.st.Fence
	if old.ClusterID != f.ClusterID || old.Epoch != f.Epoch || old.Term != f.Term {
		next := id.st
		next.Fence = highest
		next.Fence.Counter = 0
		if err := writeJSON(id.dir, identityFile, next); err != nil {
			return err
		}
	}
	id.st.Fence = highest
	return nil
}

func readJSON(dir, name string, v any) error {
	path := filepath.Join(dir, name)
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s is damaged: %w", path, err)
	}
	return nil
}

// writeJSON replaces a file atomically and durably.
func writeJSON(dir, name string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding %s: %w", name, err)
	}
	path := filepath.Join(dir, name)
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(append(b, '\n')); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", tmp, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

package indexer

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"

	"tidemark/indexer/core"
	"tidemark/indexer/jsonfile"
	"tidemark/wire"
)

const (
	identityFile    = "identity.json"
	definitionsFile = "definitions.log"
)

// identityState is the permanent identity of the indexer and the fence it obeys, as stored in the data folder.
type identityState struct {
	Format int    `json:"format"`
	UUID   string `json:"uuid"`
	core.Identity
}

// identity can be read while it is being stored, so that a hung disk blocks only callers that change it.
type identity struct {
	dir     string
	boot    string                         // of the process
	watched func(store func() error) error // runs store, and reports when it does not return

	changing sync.Mutex // held from a decision until it is stored and in effect; taken before mu
	mu       sync.Mutex
	st       identityState
}

const identityFormat = 1

// loadIdentity reads the indexer's identity, or creates and stores a new one.
func loadIdentity(dir, boot string, watched func(store func() error) error) (*identity, error) {
	id := &identity{dir: dir, boot: boot, watched: watched}
	err := jsonfile.Read(dir, identityFile, &id.st)
	var unread *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		uuid, err := newID(16)
		if err != nil {
			return nil, err
		}
		id.st = identityState{Format: identityFormat, UUID: uuid}
		return id, jsonfile.Write(dir, identityFile, id.st)
	case errors.As(err, &unread):
		return nil, fmt.Errorf("identity of this indexer: %w", err)
	case err != nil:
		return nil, fmt.Errorf("identity of this indexer: %w; restore that file, or move %s away and start again: a new "+
			"indexer joins, and tidemark cluster status says how the slices of this one are rebuilt", err, dir)
	case id.st.Format != identityFormat || id.st.UUID == "":
		return nil, fmt.Errorf("%s: format %d, this program supports %d", filepath.Join(dir, identityFile), id.st.Format,
			identityFormat)
	}
	return id, nil
}

func (id *identity) get() identityState {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.st
}

// registered stores the identity that the leader has assigned.
func (id *identity) registered(r *wire.RegisterReply) error {
	id.changing.Lock()
	defer id.changing.Unlock()
	next, store, err := id.get().Registered(r)
	if err != nil {
		return err
	}
	return id.take(next, store)
}

// admit checks a command's fence. The fence of a new leader is stored before its first command is obeyed.
func (id *identity) admit(f wire.Fence) error {
	id.changing.Lock()
	defer id.changing.Unlock()
	next, store, err := id.get().Admit(id.boot, f)
	if err != nil {
		return err
	}
	return id.take(next, store)
}

// take puts next in effect, after storing it durably if store is true. The caller holds changing.
func (id *identity) take(next core.Identity, store bool) error {
	if store {
		kept := id.get()
		kept.Identity = next.Kept()
		if err := id.watched(func() error { return jsonfile.Write(id.dir, identityFile, kept) }); err != nil {
			return err
		}
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	id.st.Identity = next
	return nil
}

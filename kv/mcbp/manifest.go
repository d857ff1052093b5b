package mcbp

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Names and ids of collections. New ones never get ids below FirstCollection.
const (
	// DefaultName is the name of the default scope, and of the default collection in it.
	DefaultName = "_default"
	// DefaultCollection is the id of the default scope and of the default collection.
	DefaultCollection uint32 = 0
	// FirstCollection is the lowest id of a created scope or collection.
	FirstCollection uint32 = 8
	// MaxManifest bounds a manifest in bytes: some 1,200 collections with names of maximum length.
	MaxManifest = 1 << 20
	// MaxCollectionName is the maximum length of the name of a scope or collection, in bytes.
	MaxCollectionName = 251
)

// Manifest lists the scopes and collections of a bucket. UID rises with every change. It is immutable once it is
// shared.
type Manifest struct {
	UID    uint64
	Scopes []Scope
}

// Scope is a scope of a manifest.
type Scope struct {
	Name        string
	ID          uint32
	Collections []Collection
}

// Collection is a collection of a scope.
type Collection struct {
	Name string
	ID   uint32
	// Flushed is the uid of the manifest that last emptied it, 0 for never: it starts again under its id (later
	// versions).
	Flushed uint64
}

// DefaultManifest returns the manifest of a bucket to which nothing was added.
func DefaultManifest() *Manifest {
	return &Manifest{Scopes: []Scope{{Name: DefaultName, Collections: []Collection{{Name: DefaultName}}}}}
}

// The protocol's form: numbers are hexadecimal strings.
type (
	manifestJSON struct {
		UID    string      `json:"uid"`
		Scopes []scopeJSON `json:"scopes"`
	}
	scopeJSON struct {
		Name        string           `json:"name"`
		UID         string           `json:"uid"`
		Collections []collectionJSON `json:"collections"`
	}
	collectionJSON struct {
		Name     string `json:"name"`
		UID      string `json:"uid"`
		FlushUID string `json:"flush_uid,omitempty"`
	}
)

func hexOf[N uint32 | uint64](n N) string { return strconv.FormatUint(uint64(n), 16) }

// MarshalJSON returns the form of the protocol.
func (m Manifest) MarshalJSON() ([]byte, error) {
	out := manifestJSON{UID: hexOf(m.UID), Scopes: []scopeJSON{}}
	for _, s := range m.Scopes {
		x := scopeJSON{Name: s.Name, UID: hexOf(s.ID), Collections: []collectionJSON{}}
		for _, c := range s.Collections {
			j := collectionJSON{Name: c.Name, UID: hexOf(c.ID)}
			if c.Flushed != 0 {
				j.FlushUID = hexOf(c.Flushed)
			}
			x.Collections = append(x.Collections, j)
		}
		out.Scopes = append(out.Scopes, x)
	}
	return json.Marshal(out)
}

// UnmarshalJSON decodes the form of the protocol; unknown fields are ignored.
func (m *Manifest) UnmarshalJSON(raw []byte) error {
	var in manifestJSON
	if len(raw) > MaxManifest {
		return malformed("manifest of collections", len(raw), "at most 1 MiB")
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return fmt.Errorf("%w: manifest of collections: %w", ErrMalformed, err)
	}
	uid, err := strconv.ParseUint(in.UID, 16, 64)
	if err != nil {
		return fmt.Errorf("%w: uid %q of a manifest of collections", ErrMalformed, in.UID)
	}
	out := Manifest{UID: uid}
	for _, s := range in.Scopes {
		id, err := strconv.ParseUint(s.UID, 16, 32)
		if err != nil {
			return fmt.Errorf("%w: uid %q of scope %q", ErrMalformed, s.UID, s.Name)
		}
		scope := Scope{Name: s.Name, ID: uint32(id)}
		for _, c := range s.Collections {
			if id, err = strconv.ParseUint(c.UID, 16, 32); err != nil {
				return fmt.Errorf("%w: uid %q of collection %q", ErrMalformed, c.UID, c.Name)
			}
			x := Collection{Name: c.Name, ID: uint32(id)}
			if c.FlushUID != "" {
				if x.Flushed, err = strconv.ParseUint(c.FlushUID, 16, 64); err != nil {
					return fmt.Errorf("%w: flush_uid %q of collection %q", ErrMalformed, c.FlushUID, c.Name)
				}
			}
			scope.Collections = append(scope.Collections, x)
		}
		out.Scopes = append(out.Scopes, scope)
	}
	*m = out
	return nil
}

// Scope returns a scope by its name; nil if there is none.
func (m *Manifest) Scope(name string) *Scope {
	i := slices.IndexFunc(m.Scopes, func(s Scope) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return &m.Scopes[i]
}

// Collection returns a collection of the scope by its name; nil if there is none.
func (s *Scope) Collection(name string) *Collection {
	i := slices.IndexFunc(s.Collections, func(c Collection) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &s.Collections[i]
}

// Find returns the id of a collection by its names.
func (m *Manifest) Find(scope, collection string) (id uint32, ok bool) {
	if s := m.Scope(scope); s != nil {
		if c := s.Collection(collection); c != nil {
			return c.ID, true
		}
	}
	return 0, false
}

// ScopeOf returns the id of the scope of the collection id.
func (m *Manifest) ScopeOf(id uint32) (scope uint32, ok bool) {
	for _, s := range m.Scopes {
		if slices.ContainsFunc(s.Collections, func(c Collection) bool { return c.ID == id }) {
			return s.ID, true
		}
	}
	return 0, false
}

// HasScope reports whether there is a scope with this id.
func (m *Manifest) HasScope(id uint32) bool {
	return slices.ContainsFunc(m.Scopes, func(s Scope) bool { return s.ID == id })
}

// SplitPath parses "scope.collection"; an empty name is the default one.
func SplitPath(path string) (scope, collection string, ok bool) {
	scope, collection, ok = strings.Cut(path, ".")
	if !ok || strings.Contains(collection, ".") {
		return "", "", false
	}
	if scope == "" {
		scope = DefaultName
	}
	if collection == "" {
		collection = DefaultName
	}
	return scope, collection, true
}

// ValidName reports whether a scope or collection may be created with this name: letters, digits, '_', '-' and '%',
// not beginning with '_' or '%', at most MaxCollectionName bytes.
func ValidName(name string) bool {
	if name == "" || len(name) > MaxCollectionName || strings.ContainsAny(name[:1], "_%") {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return !isAlphanumeric(r) && !strings.ContainsRune("_-%", r) })
}

// isAlphanumeric reports whether a character is an ASCII letter or digit.
func isAlphanumeric(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
}

// Package access defines what users of a KV cluster may do: the roles, named as in Couchbase, the permissions of each
// role, and the users who have them.
//
// A role has the same permissions wherever it is checked, a permission that is not in the table of roles is granted
// to no user, and a password cannot be recovered from what is stored of it (Keys). The set of roles is small on
// purpose: only those that have a meaning for documents and for the cluster. Roles for documents are for a bucket, a
// scope or a collection.
//
// The package does no I/O and stores nothing; callers supply the random bytes.
package access

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"tidemark/kv/mcbp"
)

// ErrAccess means that a user, a group, a role or a password is invalid; the message gives the reason.
var ErrAccess = errors.New("unusable user or group")

// Permission is one kind of access, to the cluster or to a bucket.
type Permission uint8

// Permissions in the cluster.
const (
	// Enter permits seeing that there is a cluster, and the addresses of its nodes.
	Enter Permission = iota
	// ReadCluster permits reading the state of nodes, and their log levels.
	ReadCluster
	// ManageCluster permits changing the members, and what nodes do.
	ManageCluster
	// ReadUsers and ManageUsers permit reading and changing users and their roles.
	ReadUsers
	ManageUsers
)

// Permissions in a bucket.
const (
	// See permits selecting the bucket, and reading its map and its collections.
	See Permission = iota + ManageUsers + 1
	// Read and Write permit reading and writing documents.
	Read
	Write
	// ReadMeta permits reading the seqnos of vbuckets, WriteMeta writing deletions with metadata from elsewhere.
	ReadMeta
	WriteMeta
	// Stream permits DCP.
	Stream
	// Stats permits reading the bucket's statistics.
	Stats
	// ManageBucket permits changing its collections and settings, except its number of replicas, and flushing it.
	ManageBucket

	permissions
)

// purposes describes each permission as the end of a sentence that begins "may".
var purposes = [permissions]string{
	Enter: "see the cluster", ReadCluster: "see how nodes are", ManageCluster: "change the cluster",
	ReadUsers: "see users", ManageUsers: "change users", See: "see the bucket", Read: "read documents",
	Write: "write documents", ReadMeta: "see seqnos", WriteMeta: "write with meta data", Stream: "stream by DCP",
	Stats: "read statistics", ManageBucket: "change the bucket",
}

func (p Permission) String() string {
	if p >= permissions {
		return fmt.Sprintf("permission %d", uint8(p))
	}
	return purposes[p]
}

// inBucket reports whether a permission concerns a bucket.
func (p Permission) inBucket() bool { return p >= See }

// Set is a set of permissions.
type Set uint32

// All is the set of all permissions.
const All Set = 1<<permissions - 1

// SetOf returns the set of the given permissions.
func SetOf(all ...Permission) (s Set) {
	for _, p := range all {
		s |= 1 << p
	}
	return s
}

// Has reports whether a permission is in the set.
func (s Set) Has(p Permission) bool { return s.HasAll(SetOf(p)) }

// HasAll reports whether all permissions of o are in the set.
func (s Set) HasAll(o Set) bool { return s&o == o }

// Lacks returns the permissions of o that are not in the set.
func (s Set) Lacks(o Set) (out []Permission) {
	for p := range permissions {
		if (o &^ s).Has(p) {
			out = append(out, p)
		}
	}
	return out
}

// Kind is a kind of role that can be granted.
type Kind struct {
	// Name is Couchbase's name, Title its title in Couchbase's pages, What a phrase that describes what it permits.
	Name, Title, What string
	// OfBucket means that the role is granted for one bucket, or for all: "*".
	OfBucket bool
	// OfScope means that the role may also be granted for a scope or a collection of a bucket.
	OfScope bool

	cluster, bucket Set
}

var (
	looks  = SetOf(See, Stats)
	enters = SetOf(Enter)
)

// kinds is the only table of the roles' permissions.
var kinds = []Kind{
	{Name: "admin", Title: "Full Admin", What: "everything", cluster: All, bucket: All},
	{Name: "ro_admin", Title: "Read-Only Admin", What: "see the cluster, its buckets, statistics and users; no documents",
		cluster: SetOf(Enter, ReadCluster, ReadUsers), bucket: looks},
	{Name: "cluster_admin", Title: "Cluster Admin",
		What:   "see and change the cluster and its buckets, and read statistics; no documents, no users, no nodes added",
		bucket: looks | SetOf(ManageBucket), cluster: SetOf(Enter, ReadCluster, ManageCluster)},
	{Name: "bucket_admin", Title: "Bucket Admin", OfBucket: true, bucket: looks | SetOf(ManageBucket), cluster: enters,
		What: "make and drop the bucket's collections, change its settings but for replicas, empty it, and read its " +
			"statistics; no documents"},
	{Name: "bucket_full_access", Title: "Application Access", OfBucket: true, cluster: enters,
		bucket: SetOf(See, Read, Write, ReadMeta, WriteMeta, Stream), What: "read and write documents, and stream by DCP"},
	{Name: "data_reader", Title: "Data Reader", OfBucket: true, OfScope: true, cluster: enters,
		bucket: SetOf(See, Read, ReadMeta), What: "read documents"},
	{Name: "data_writer", Title: "Data Writer", OfBucket: true, OfScope: true, cluster: enters, bucket: SetOf(See, Write),
		What: "write and delete documents, and not read them"},
	{Name: "data_dcp_reader", Title: "Data DCP Reader", OfBucket: true, OfScope: true, cluster: enters,
		bucket: SetOf(See, ReadMeta, Stream), What: "stream by DCP, and see seqnos"},
	{Name: "data_monitoring", Title: "Data Monitor", OfBucket: true, cluster: enters, bucket: looks,
		What: "read statistics"},
}

// Kinds returns all kinds of roles.
func Kinds() []Kind { return slices.Clone(kinds) }

// Permits returns what the role permits in a bucket for which it is granted, together with what it permits in the
// cluster.
func (k Kind) Permits() Set { return k.cluster | k.bucket }

// kindOf returns the role of that name; nil if there is none.
func kindOf(name string) *Kind {
	for i := range kinds {
		if kinds[i].Name == name {
			return &kinds[i]
		}
	}
	return nil
}

// Granting lists the roles that permit all of need, for messages: "admin, data_reader[world]".
func Granting(need Set, bucket string) string {
	var out []string
	for _, k := range kinds {
		if !k.Permits().HasAll(need) {
			continue
		}
		if k.OfBucket && bucket != "" {
			out = append(out, Role{Name: k.Name, Bucket: bucket}.String())
		} else {
			out = append(out, k.Name)
		}
	}
	return strings.Join(out, ", ")
}

// Any stands for all buckets in a role; in a role's text also for all scopes, or all collections of a scope.
const Any = "*"

// Role is a granted role. Bucket is empty if the role is for the cluster, Scope if it is for the whole bucket,
// Collection if it is for the whole scope.
type Role struct{ Name, Bucket, Scope, Collection string }

// String returns the role as Couchbase writes it: admin, data_reader[world], data_reader[world:shop:carts].
func (r Role) String() string {
	switch {
	case r.Bucket == "":
		return r.Name
	case r.Scope == "":
		return r.Name + "[" + r.Bucket + "]"
	case r.Collection == "":
		return r.Name + "[" + r.Bucket + ":" + r.Scope + "]"
	}
	return r.Name + "[" + r.Bucket + ":" + r.Scope + ":" + r.Collection + "]"
}

// Within reports whether the role is for the given bucket, scope (unless empty) and collection (unless empty), or for
// a part of it.
func (r Role) Within(bucket, scope, collection string) bool {
	return r.Bucket == bucket && (scope == "" || r.Scope == scope) && (collection == "" || r.Collection == collection)
}

// MarshalText implements encoding.TextMarshaler.
func (r Role) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. Error: ErrAccess.
func (r *Role) UnmarshalText(text []byte) (err error) {
	*r, err = ParseRole(string(text))
	return err
}

// maxBucketName is the maximum length of a bucket's name in a role.
const maxBucketName = 100

// ParseRole parses a role as String writes it. Error: ErrAccess.
func ParseRole(text string) (Role, error) {
	name, rest, bracket := strings.Cut(text, "[")
	place, closed := strings.CutSuffix(rest, "]")
	bucket, inside, parted := strings.Cut(place, ":")
	k := kindOf(name)
	switch {
	case k == nil:
		return Role{}, fmt.Errorf("%w: there is no role %q: want one of %s", ErrAccess, cut(name), names())
	case bracket && !closed:
		return Role{}, fmt.Errorf("%w: role %q: want %s[BUCKET]", ErrAccess, cut(text), name)
	case !k.OfBucket && bracket:
		return Role{}, fmt.Errorf("%w: role %q: %s applies to the cluster and takes no bucket", ErrAccess, cut(text), name)
	case k.OfBucket && bucket == "":
		return Role{}, fmt.Errorf("%w: role %q: want %s[BUCKET], or %s[*] for all buckets", ErrAccess, cut(text), name, name)
	case len(bucket) > maxBucketName || strings.ContainsAny(bucket, barred):
		return Role{}, fmt.Errorf("%w: role %q: this is not a valid bucket name", ErrAccess, cut(text))
	}
	r := Role{Name: name, Bucket: bucket}
	if !parted {
		return r, nil
	}
	return r, r.parse(inside, k.OfScope, text)
}

// barred are the characters that no name of a bucket, a scope or a collection contains.
const barred = "[], \t"

// parse parses what follows the bucket of a role: a scope, and perhaps a collection. Error: ErrAccess.
func (r *Role) parse(inside string, may bool, text string) error {
	scope, collection, named := strings.Cut(inside, ":")
	if !named {
		collection = Any
	}
	if scope == Any && collection == Any { // the whole bucket
		return nil
	}
	switch {
	case !may:
		return fmt.Errorf("%w: role %q: %s applies to whole buckets: want %s[BUCKET]", ErrAccess, cut(text), r.Name, r.Name)
	case r.Bucket == Any || scope == Any || scope == "" || collection == "" || strings.Contains(collection, ":"):
		return fmt.Errorf("%w: role %q: want %s[BUCKET:SCOPE] or %s[BUCKET:SCOPE:COLLECTION]", ErrAccess, cut(text), r.Name,
			r.Name)
	case len(scope) > mcbp.MaxCollectionName || len(collection) > mcbp.MaxCollectionName ||
		strings.ContainsAny(inside, barred):
		return fmt.Errorf("%w: role %q: this is not a valid scope or collection name", ErrAccess, cut(text))
	}
	r.Scope = scope
	if collection != Any {
		r.Collection = collection
	}
	return nil
}

// Form returns the syntax of the role: admin, data_reader[BUCKET].
func (k *Kind) Form() string {
	if k.OfBucket {
		return k.Name + "[BUCKET]"
	}
	return k.Name
}

// names lists all roles, for messages.
func names() string {
	var out []string
	for _, k := range kinds {
		out = append(out, k.Form())
	}
	return strings.Join(out, ", ")
}

// cut shortens a text that is repeated in a message.
func cut(text string) string {
	const most = 150
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// ParseRoles parses a comma-separated list and returns the roles in order, without duplicates; none for an empty
// text. Error: ErrAccess.
func ParseRoles(text string) (out []Role, err error) {
	out = []Role{}
	if strings.TrimSpace(text) == "" {
		return out, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		r, err := ParseRole(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		if len(out) == MaxRoles {
			return nil, tooManyRoles()
		}
		out = append(out, r)
	}
	return Ordered(out), nil
}

// Ordered returns roles in the order in which they are stored, without duplicates.
func Ordered(roles []Role) []Role {
	out := slices.Clone(roles)
	slices.SortFunc(out, func(a, b Role) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(out)
}

// Permitted returns what roles permit in a whole bucket or, if bucket is empty, in the cluster. A role for a part of
// the bucket permits only See in the bucket as a whole.
func Permitted(roles []Role, bucket string) (s Set) {
	for _, r := range roles {
		k := kindOf(r.Name)
		if k == nil {
			continue
		}
		s |= k.cluster
		if bucket != "" && (!k.OfBucket || r.Bucket == Any || r.Bucket == bucket) {
			set := k.bucket
			if r.Scope != "" {
				set &= SetOf(See)
			}
			s |= set
		}
	}
	if bucket == "" {
		s &= cluster
	}
	return s
}

// cluster is the set of the permissions that concern no bucket.
var cluster = func() (s Set) {
	for p := range permissions {
		if !p.inBucket() {
			s |= SetOf(p)
		}
	}
	return s
}()

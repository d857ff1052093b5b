// Package access says what users of a KV cluster may do: roles, by the names that Couchbase has for them, what each of
// them permits, and the users who have them.
//
// It promises that a role permits the same wherever it is asked, that what is not in its table is permitted to nobody,
// and that a password cannot be had from what is kept of it (Keys). The set of roles is small on purpose: those that
// have a meaning for documents and for the cluster; those for documents are for a bucket, a scope or a collection.
//
// It decides from what it is given: it knows no connection, keeps nothing, and has no chance of its own.
package access

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"tidemark/kv/mcbp"
)

// ErrAccess means that a user, a group, a role or a password cannot be as it was given; the message says why.
var ErrAccess = errors.New("unusable user or group")

// Permission is one thing that somebody may do, in the cluster or in a bucket.
type Permission uint8

// Permissions in the cluster.
const (
	// Enter is to see that there is a cluster, and where its nodes are.
	Enter Permission = iota
	// ReadCluster is to see how nodes are, and how much they log.
	ReadCluster
	// ManageCluster is to change who is a member, and what nodes do.
	ManageCluster
	// ReadUsers and ManageUsers are about users and their roles.
	ReadUsers
	ManageUsers
)

// Permissions in a bucket.
const (
	// See is to select the bucket, and to see its map and its collections.
	See Permission = iota + ManageUsers + 1
	// Read and Write are of documents.
	Read
	Write
	// ReadMeta is to see how far vbuckets are, WriteMeta to write deletions with the meta data of somebody else.
	ReadMeta
	WriteMeta
	// Stream is DCP.
	Stream
	// Stats are a bucket's statistics.
	Stats
	// ManageBucket is to change its collections and settings, but for its number of replicas, and to empty it.
	ManageBucket

	permissions
)

// purposes say what each permission is for, as the end of "may".
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

// inBucket says whether a permission is about a bucket.
func (p Permission) inBucket() bool { return p >= See }

// Set is a set of permissions.
type Set uint32

// All is everything.
const All Set = 1<<permissions - 1

// SetOf is the set of those permissions.
func SetOf(all ...Permission) (s Set) {
	for _, p := range all {
		s |= 1 << p
	}
	return s
}

// Has reports whether a permission is in the set.
func (s Set) Has(p Permission) bool { return s.HasAll(SetOf(p)) }

// HasAll reports whether all of those are in the set.
func (s Set) HasAll(o Set) bool { return s&o == o }

// Lacks are the permissions of o that are not in the set.
func (s Set) Lacks(o Set) (out []Permission) {
	for p := range permissions {
		if (o &^ s).Has(p) {
			out = append(out, p)
		}
	}
	return out
}

// Kind is a role as one chooses it.
type Kind struct {
	// Name is Couchbase's, Title what its pages call it, What what it permits, in a sentence.
	Name, Title, What string
	// OfBucket says that the role is for one bucket, or for all: "*".
	OfBucket bool
	// OfScope says that it is for a bucket, or for a scope or a collection of one.
	OfScope bool

	cluster, bucket Set
}

var (
	looks  = SetOf(See, Stats)
	enters = SetOf(Enter)
)

// kinds is the one table of what roles permit.
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

// Kinds are the roles that there are.
func Kinds() []Kind { return slices.Clone(kinds) }

// Permits is what the role permits in a bucket that it is for, or, of the cluster, in any.
func (k Kind) Permits() Set { return k.cluster | k.bucket }

// kindOf finds a role by its name; nil when there is none.
func kindOf(name string) *Kind {
	for i := range kinds {
		if kinds[i].Name == name {
			return &kinds[i]
		}
	}
	return nil
}

// Granting names the roles that permit all of those, for messages: "admin, data_reader[world]".
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

// Any stands for all buckets in a role; in texts, too, for all scopes, or all collections of one.
const Any = "*"

// Role is a role that somebody has. Bucket is empty where the role is for the cluster, Scope where it is for the whole
// bucket, Collection where it is for the whole scope.
type Role struct{ Name, Bucket, Scope, Collection string }

// String writes it as Couchbase does: admin, data_reader[world], data_reader[world:shop:carts].
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

// Within reports whether a role is for that, or for a part of it: a bucket, with a scope one of its scopes, with a
// collection that one.
func (r Role) Within(bucket, scope, collection string) bool {
	return r.Bucket == bucket && (scope == "" || r.Scope == scope) && (collection == "" || r.Collection == collection)
}

// MarshalText is part of encoding.TextMarshaler.
func (r Role) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText is part of encoding.TextUnmarshaler. Error: ErrAccess.
func (r *Role) UnmarshalText(text []byte) (err error) {
	*r, err = ParseRole(string(text))
	return err
}

// maxBucketName bounds a bucket's name in a role.
const maxBucketName = 100

// ParseRole reads a role as String writes it. Error: ErrAccess.
func ParseRole(text string) (Role, error) {
	name, rest, bracket := strings.Cut(text, "[")
	place, closed := strings.CutSuffix(rest, "]")
	bucket, inside, parted := strings.Cut(place, ":")
	k := kindOf(name)
	switch {
	case k == nil:
		return Role{}, fmt.Errorf("%w: there is no role %q here: want one of %s", ErrAccess, cut(name), names())
	case bracket && !closed:
		return Role{}, fmt.Errorf("%w: role %q: want %s[BUCKET]", ErrAccess, cut(text), name)
	case !k.OfBucket && bracket:
		return Role{}, fmt.Errorf("%w: role %q: %s is for the cluster, and names no bucket", ErrAccess, cut(text), name)
	case k.OfBucket && bucket == "":
		return Role{}, fmt.Errorf("%w: role %q: want %s[BUCKET], or %s[*] for all buckets", ErrAccess, cut(text), name, name)
	case len(bucket) > maxBucketName || strings.ContainsAny(bucket, barred):
		return Role{}, fmt.Errorf("%w: role %q: no bucket has that name", ErrAccess, cut(text))
	}
	r := Role{Name: name, Bucket: bucket}
	if !parted {
		return r, nil
	}
	return r, r.parse(inside, k.OfScope, text)
}

// barred are in no name of a bucket, a scope or a collection.
const barred = "[], \t"

// parse reads what is behind the bucket of a role: a scope, and perhaps a collection. Error: ErrAccess.
func (r *Role) parse(inside string, may bool, text string) error {
	scope, collection, named := strings.Cut(inside, ":")
	if !named {
		collection = Any
	}
	if scope == Any && collection == Any { // all of it
		return nil
	}
	switch {
	case !may:
		return fmt.Errorf("%w: role %q: %s is for whole buckets here: want %s[BUCKET]", ErrAccess, cut(text), r.Name, r.Name)
	case r.Bucket == Any || scope == Any || scope == "" || collection == "" || strings.Contains(collection, ":"):
		return fmt.Errorf("%w: role %q: want %s[BUCKET:SCOPE] or %s[BUCKET:SCOPE:COLLECTION]", ErrAccess, cut(text), r.Name,
			r.Name)
	case len(scope) > mcbp.MaxCollectionName || len(collection) > mcbp.MaxCollectionName ||
		strings.ContainsAny(inside, barred):
		return fmt.Errorf("%w: role %q: no scope and no collection has that name", ErrAccess, cut(text))
	}
	r.Scope = scope
	if collection != Any {
		r.Collection = collection
	}
	return nil
}

// Form is how a role is given: admin, data_reader[BUCKET].
func (k *Kind) Form() string {
	if k.OfBucket {
		return k.Name + "[BUCKET]"
	}
	return k.Name
}

// names lists the roles that there are, for messages.
func names() string {
	var out []string
	for _, k := range kinds {
		out = append(out, k.Form())
	}
	return strings.Join(out, ", ")
}

// cut bounds what is repeated of a text in a message.
func cut(text string) string {
	const most = 150
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// ParseRoles reads a list, divided by commas, and returns it in order, each role once. An empty text is no role. Error:
// ErrAccess.
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

// Ordered returns roles in the order in which they are kept, each once.
func Ordered(roles []Role) []Role {
	out := slices.Clone(roles)
	slices.SortFunc(out, func(a, b Role) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(out)
}

// Permitted is what roles permit in a whole bucket; with an empty name, in the cluster. One for a part of the bucket
// permits to see it.
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

// cluster are the permissions that are about no bucket.
var cluster = func() (s Set) {
	for p := range permissions {
		if !p.inBucket() {
			s |= SetOf(p)
		}
	}
	return s
}()

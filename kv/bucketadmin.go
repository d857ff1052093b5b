package kv

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"tidemark/internal/rpc/route"
	"tidemark/kv/access"
	"tidemark/kv/clustermap"
	"tidemark/kv/store"
)

const (
	// pathBucketChange is the path that nodes and commands use to create, change and drop buckets; pathBuckets and
	// pathBucket are the documented Couchbase paths for it.
	pathBucketChange = "/v1/cluster/buckets"

	// minQuotaMiB and maxQuotaMiB bound the memory that a form may request. The node's memory is shared by all buckets.
	minQuotaMiB, maxQuotaMiB = 100, 1 << 20
	// defaultReplicas is the number of replicas of a bucket that is created without one, as in Couchbase.
	defaultReplicas = 1
)

// changeBuckets commits a revision of the map in which a bucket is created, dropped or changed. When it returns, this
// node has opened the new bucket or removed the files of the dropped one (a failed removal is logged and retried),
// and all reachable members have the map. Replicas are created later, as in a rebalance.
func (c *cluster) changeBuckets(ctx context.Context, change clustermap.BucketChange) (any, error) {
	return c.changeBucketsBy(ctx, c.n.config.User, change)
}

// changeBucketsBy is changeBuckets for a user who may change the bucket. The user may change the number of replicas
// only with the right to change the cluster: creating replicas moves data, and blocks other changes of members and
// buckets meanwhile.
func (c *cluster) changeBucketsBy(ctx context.Context, user string, change clustermap.BucketChange) (any, error) {
	ctx, cancel := context.WithTimeout(ctx, operationTimeout)
	defer cancel()
	m, _, err := c.revise(ctx, func(m clustermap.Map) (clustermap.Map, error) {
		var err error
		if change, err = c.named(m, change); err != nil {
			return m, err
		}
		if change.Edit != nil { // decided here, with the newest users
			change.Edit.KeepReplicas = !c.n.permitted(user, "").Has(access.ManageCluster)
		}
		return m.ChangeBuckets(change)
	})
	if err != nil {
		return nil, err
	}
	if change.Edit != nil {
		c.kick() // replicas may have to be created
		answer := bucketAnswer{done: doneWith(m), Name: change.Name, UUID: change.UUID}
		if op := m.Operation; op != nil && op.Bucket == change.Name {
			answer.Operation = op.ID
		}
		return answer, nil
	}
	if err := c.awaitBucket(ctx, bucketID{change.Name, change.UUID}, change.Drop); err != nil {
		return nil, err
	}
	return bucketAnswer{done: doneWith(m), Name: change.Name, UUID: change.UUID}, nil
}

// named sets the uuid of the bucket that a change concerns. A new bucket gets as many vbuckets as the configured
// ones, unless the change sets the number.
func (c *cluster) named(m clustermap.Map, change clustermap.BucketChange) (clustermap.BucketChange, error) {
	if change.Drop || change.Edit != nil {
		if b := m.Bucket(change.Name); b != nil {
			change.UUID = cmp.Or(change.UUID, b.UUID)
		}
		if change.Edit != nil {
			edit := *change.Edit
			edit.Operation = operationID()
			change.Edit = &edit
		}
		return change, nil
	}
	if n := c.n.shelf.leaving(); n >= clustermap.MaxBuckets {
		return change, fmt.Errorf("%w: the files of %d dropped buckets are still being removed: ask again later",
			clustermap.ErrBuckets, n)
	}
	var uuid [16]byte
	randomBytes(uuid[:])
	change.UUID = hex.EncodeToString(uuid[:])
	change.VBuckets = cmp.Or(change.VBuckets, c.n.config.Buckets[0].VBuckets)
	return change, nil
}

// awaitBucket waits until this node has opened a bucket, or removed a dropped one.
func (c *cluster) awaitBucket(ctx context.Context, id bucketID, drop bool) error {
	again := time.NewTicker(followAgain)
	defer again.Stop()
	for {
		var why string
		switch {
		case drop && c.n.shelf.leavingOf(id):
			why = fmt.Sprintf("bucket %q is dropped, and its files are still being removed", id.name)
		case !drop && c.n.bucketOf(id) == nil && c.current().BucketOf(id.name, id.uuid) != nil:
			why = fmt.Sprintf("bucket %q is created but not open yet: %s", id.name,
				cmp.Or(c.n.openProblemOf(id), "trying again"))
		default:
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", why, context.Cause(ctx))
		}
	}
}

// bucketAnswer is the result of a change of buckets.
type bucketAnswer struct {
	done
	Name string `json:"name"`
	UUID string `json:"uuid"`
	// Operation is the id of the operation that creates or removes replicas after an edit; empty: there is none.
	Operation string `json:"operation,omitempty"`
}

func (n *Node) postBucketChange(ctx context.Context, body []byte) (any, error) {
	r, err := decode[clustermap.BucketChange](body)
	if err != nil {
		return nil, err
	}
	return n.cluster.changeBuckets(ctx, r)
}

// bucketRoutes returns the documented routes, which any member accepts and forwards to the leader, and the one for
// nodes.
func (n *Node) bucketRoutes() []route.Route {
	user := n.user()
	return []route.Route{
		{Method: "POST", Path: pathBucket, Role: n.may(access.ManageBucket), Body: maxForm, Limit: relayTimeout,
			Handle: n.editBucket},
		{Method: "POST", Path: pathBucketChange, Role: user, Body: maxForm, Limit: commandTimeout,
			Handle: command(n.postBucketChange)},
		{Method: "POST", Path: pathBuckets, Role: user, Body: maxForm, Limit: relayTimeout, Handle: n.makeBucket},
		{Method: "DELETE", Path: pathBucket, Role: user, Limit: relayTimeout, Handle: n.dropBucket},
	}
}

// makeBucket creates the bucket that a form describes.
func (n *Node) makeBucket(w http.ResponseWriter, r *http.Request) error {
	if err := readForm(r); err != nil {
		return err
	}
	change, wrong := readBucketForm(r.Form)
	if len(wrong) > 0 {
		return formErrors(w, http.StatusBadRequest, wrong)
	}
	switch _, err := n.cluster.changeBuckets(r.Context(), change); {
	case n.passOn(w, r, err):
		return nil
	case err == nil:
		w.WriteHeader(http.StatusAccepted) // as Couchbase answers, which creates the bucket later
		return nil
	case errors.Is(err, clustermap.ErrBucketExists):
		return formError(w, http.StatusBadRequest, "name", "Bucket with given name already exists")
	case errors.Is(err, clustermap.ErrRebalancing):
		return formError(w, http.StatusBadRequest, "_", "Cannot create buckets during rebalance")
	case errors.Is(err, clustermap.ErrTooManyBuckets):
		return formError(w, http.StatusBadRequest, "_", fmt.Sprintf("Cannot create more than %d buckets",
			clustermap.MaxBuckets))
	case errors.Is(err, clustermap.ErrBuckets):
		return formError(w, http.StatusBadRequest, "_", err.Error())
	default:
		return formError(w, http.StatusServiceUnavailable, "_", err.Error())
	}
}

// editBucket changes the bucket of the path as a form describes.
func (n *Node) editBucket(w http.ResponseWriter, r *http.Request) error {
	if err := readForm(r); err != nil {
		return err
	}
	change, wrong := readBucketEdit(r.PathValue("bucket"), r.Form)
	if len(wrong) > 0 {
		return formErrors(w, http.StatusBadRequest, wrong)
	}
	switch _, err := n.cluster.changeBucketsBy(r.Context(), callerOf(r), change); {
	case err == nil, n.passOn(w, r, err):
		return nil
	case errors.Is(err, clustermap.ErrNoBucket):
		return notFound(w)
	case errors.Is(err, clustermap.ErrKeepReplicas):
		return formError(w, http.StatusForbidden, "replicaNumber", "Changing the number of replicas needs a role of "+
			access.Granting(access.SetOf(access.ManageCluster), ""))
	case errors.Is(err, clustermap.ErrFixed):
		return formError(w, http.StatusBadRequest, "numVBuckets", fixedFields["numVBuckets"])
	case errors.Is(err, clustermap.ErrRebalancing):
		return formError(w, http.StatusServiceUnavailable, "replicaNumber", "Cannot change replicas during rebalance.")
	case errors.Is(err, clustermap.ErrBuckets):
		return formError(w, http.StatusBadRequest, "_", err.Error())
	default:
		return formError(w, http.StatusServiceUnavailable, "_", err.Error())
	}
}

// dropBucket drops the bucket of the path.
func (n *Node) dropBucket(w http.ResponseWriter, r *http.Request) error {
	_, err := n.cluster.changeBuckets(r.Context(), clustermap.BucketChange{Name: r.PathValue("bucket"), Drop: true})
	switch {
	case err == nil, n.passOn(w, r, err):
		return nil
	case errors.Is(err, clustermap.ErrNoBucket):
		return notFound(w)
	case errors.Is(err, clustermap.ErrRebalancing):
		return formError(w, http.StatusServiceUnavailable, "_", "Cannot delete buckets during rebalance.")
	}
	return formError(w, http.StatusServiceUnavailable, "_", err.Error())
}

// bucketFields maps the form fields of a bucket to functions that apply a value and return what is wrong with it. A
// field with a fixed meaning here accepts no other value.
var bucketFields = map[string]func(value string, c *clustermap.BucketChange) (wrong string){
	"name": func(v string, c *clustermap.BucketChange) string {
		c.Name = v
		return wrongName(v)
	},
	"ramQuota": wrongQuota, "ramQuotaMB": wrongQuota,
	"replicaNumber": func(v string, c *clustermap.BucketChange) (wrong string) {
		c.Replicas, wrong = wholeNumber(v, 0, clustermap.MaxReplicas)
		return wrong
	},
	"numVBuckets": func(v string, c *clustermap.BucketChange) (wrong string) {
		if c.VBuckets, wrong = wholeNumber(v, 1, store.MaxVBuckets); wrong == "" && c.VBuckets&(c.VBuckets-1) != 0 {
			wrong = "The value must be a power of two"
		}
		return wrong
	},
	"flushEnabled": func(v string, c *clustermap.BucketChange) string {
		c.NoFlush = v == "0"
		return oneOf(v, "0", "1")
	},
	// Settings that this node supports in only one form.
	"bucketType":             only("membase", "couchbase"),
	"evictionPolicy":         only("valueOnly"),
	"storageBackend":         only("couchstore"),
	"conflictResolutionType": only("seqno"),
	"durabilityMinLevel":     only("none"),
	"compressionMode":        only("off", "passive"),
	"maxTTL":                 only("0"),
	"authType":               only("sasl"),
	"saslPassword":           only(""),
	// Settings without an effect: there are no views, and no threads per bucket.
	"replicaIndex": only("0", "1"), "threadsNumber": only("3", "8"),
}

// fixedFields maps the fields that cannot change after the creation of a bucket to the error for another value.
var fixedFields = map[string]string{
	"name": "The name of a bucket cannot be changed", "bucketType": "The type of a bucket cannot be changed",
	"numVBuckets":            "The number of vbuckets cannot be changed",
	"storageBackend":         "The storage backend of a bucket cannot be changed",
	"conflictResolutionType": "The conflict resolution of a bucket cannot be changed",
}

// readBucketEdit reads a change of a bucket, and returns what is wrong with each field. Fields that the form does not
// contain stay unchanged; fields that cannot be changed may be present with their present value.
func readBucketEdit(bucket string, form url.Values) (c clustermap.BucketChange, wrong map[string]string) {
	c.Name, c.Edit = bucket, &clustermap.BucketEdit{}
	wrong = readBucketFields(form, &c)
	if c.Name != bucket {
		wrong["name"] = fixedFields["name"]
	}
	for field, why := range fixedFields {
		if wrong[field] != "" && len(form[field]) == 1 {
			wrong[field] = why
		}
	}
	if form.Has("replicaNumber") {
		c.Edit.Replicas = new(c.Replicas)
	}
	if form.Has("flushEnabled") {
		c.Edit.NoFlush = new(c.NoFlush)
	}
	return c, wrong
}

// readBucketForm reads the form for a new bucket, and returns what is wrong with each field.
func readBucketForm(form url.Values) (c clustermap.BucketChange, wrong map[string]string) {
	c.NoFlush, c.Replicas = true, defaultReplicas
	wrong = readBucketFields(form, &c)
	if !form.Has("name") {
		wrong["name"] = "Bucket name needs to be specified"
	}
	if !form.Has("ramQuota") && !form.Has("ramQuotaMB") {
		wrong["ramQuota"] = "The RAM Quota must be specified and must be a positive integer."
	}
	return c, wrong
}

// readBucketFields reads the fields that a form contains.
func readBucketFields(form url.Values, c *clustermap.BucketChange) (wrong map[string]string) {
	wrong = map[string]string{}
	for field, values := range form {
		check, known := bucketFields[field]
		switch {
		case !known:
			wrong[field] = "Unsupported key"
		case len(values) > 1:
			wrong[field] = "The value must be given once"
		default:
			if why := check(values[0], c); why != "" {
				wrong[field] = why
			}
		}
	}
	return wrong
}

func wrongName(v string) string {
	switch {
	case v == "":
		return "Bucket name cannot be empty"
	case len(v) > clustermap.MaxBucketName:
		return fmt.Sprintf("Bucket name cannot exceed %d characters", clustermap.MaxBucketName)
	case v[0] == '.':
		return "Bucket name cannot start with dot."
	case !clustermap.ValidBucketName(v):
		return "Bucket name can only contain characters in range A-Z, a-z, 0-9 as well as underscore, period, dash & percent."
	}
	return ""
}

// wrongQuota validates a quota in MiB, which has no effect here.
func wrongQuota(v string, _ *clustermap.BucketChange) string {
	_, wrong := wholeNumber(v, minQuotaMiB, maxQuotaMiB)
	return wrong
}

func wholeNumber(v string, least, most int) (n int, wrong string) {
	n, err := strconv.Atoi(v)
	if err != nil || n < least || n > most {
		return 0, fmt.Sprintf("The value must be an integer between %d and %d", least, most)
	}
	return n, ""
}

func only(values ...string) func(string, *clustermap.BucketChange) string {
	return func(v string, _ *clustermap.BucketChange) string { return oneOf(v, values...) }
}

func oneOf(v string, values ...string) string {
	for _, x := range values {
		if v == x {
			return ""
		}
	}
	return fmt.Sprintf("The value must be one of the following: [%s]", strings.Join(values, ","))
}

// openProblemOf returns why a bucket is not open; empty if no reason is known.
func (n *Node) openProblemOf(id bucketID) string {
	for _, b := range n.buckets() {
		if b.id() == id {
			return b.openProblem()
		}
	}
	return ""
}

// ChangeBuckets creates, changes or drops a bucket. It returns the bucket's uuid and, after a change, the id of the
// operation that creates or removes replicas; empty: there is none.
func (a *Admin) ChangeBuckets(ctx context.Context, c clustermap.BucketChange) (uuid, operation string, err error) {
	var answer bucketAnswer
	err = a.lead(ctx, pathBucketChange, c, &answer)
	return answer.UUID, answer.Operation, err
}

// BucketInfo describes a bucket of the cluster. Items counts items in active vbuckets on the nodes that answer.
type BucketInfo struct {
	Name     string `json:"name"`
	UUID     string `json:"uuid"`
	VBuckets int    `json:"vbuckets"`
	Replicas int    `json:"replicas"`
	Items    int    `json:"items"`
	// Flush reports whether the bucket may be flushed, Configured whether nodes have it in their configuration.
	Flush      bool `json:"flush"`
	Configured bool `json:"configured"`
}

// Buckets returns the buckets of the newest map of any node. It returns an error if none answers.
func (a *Admin) Buckets(ctx context.Context) ([]BucketInfo, error) {
	s, err := a.answers(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]BucketInfo, 0, len(s.m.Buckets))
	for _, b := range s.m.Buckets {
		info := BucketInfo{Name: b.Name, UUID: b.UUID, VBuckets: len(b.Chains), Replicas: b.Replicas, Flush: !b.NoFlush,
			Configured: !b.Made}
		for _, v := range s.views {
			if v.Map.BucketOf(b.Name, b.UUID) == nil {
				continue // the node still has another bucket of that name
			}
			for _, x := range v.Copies[b.Name] {
				if x.State == store.Active.String() {
					info.Items += x.Items
				}
			}
		}
		out = append(out, info)
	}
	return out, nil
}

package kv

import (
	"context"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/internal/rpc/route"
	"tidemark/internal/tlsconf"
	"tidemark/kv/access"
	"tidemark/kv/clustermap"
)

// maxChecks bounds the concurrent password checks on the admin port: each takes some milliseconds of processor time,
// for unauthenticated callers, too.
const maxChecks = 16

type judgeKey struct{}

// judged stores the check of the route's role in the request's context, so that recheckAccess can repeat it.
func judged(x route.Route) route.Route {
	handle := x.Handle
	x.Handle = func(w http.ResponseWriter, r *http.Request) error {
		again := func() error { return x.Role.Check(r) }
		return handle(w, r.WithContext(context.WithValue(r.Context(), judgeKey{}, again)))
	}
	return x
}

// recheckAccess repeats the access check of the request to which a context belongs, once the newest users are known:
// this node may have admitted the caller by older ones. It returns nil for the node's own work.
func recheckAccess(ctx context.Context) error {
	if again, is := ctx.Value(judgeKey{}).(func() error); is {
		return again()
	}
	return nil
}

// known returns the role of callers with a certificate and of KV users with the permission; without TLS also of
// callers without credentials. A given password must always be correct, because the answer may depend on the user.
func (n *Node) known(need access.Permission) route.Role {
	user, certified := n.may(need), route.Certified()
	return route.Role{Name: certified.Name + ", or " + user.Name, Check: func(r *http.Request) error {
		none := certified.Check(r)
		if _, _, shown := r.BasicAuth(); !shown {
			if none != nil {
				return rpc.Refuse(errcode.Unauthenticated, "a certificate or the KV user and password are required: %v", none)
			}
			return nil
		}
		err := user.Check(r)
		var p *rpc.Problem
		if none == nil && r.TLS != nil && errors.As(err, &p) && p.Code == errcode.Forbidden {
			return nil // admitted by the certificate
		}
		return err
	}}
}

// user returns the role of users who may change the cluster.
func (n *Node) user() route.Role { return n.may(access.ManageCluster) }

// may returns the role of KV users with a permission: in the bucket that the path names, or else in the cluster. The
// certificates of the index roles do not count, as with Couchbase's cluster manager.
func (n *Node) may(need access.Permission) route.Role {
	return route.Role{Name: "a KV user who may " + need.String(), Check: func(r *http.Request) error {
		user, err := n.caller(r)
		if err != nil {
			return err
		}
		bucket := r.PathValue("bucket")
		if n.permitted(user, bucket).Has(need) {
			return nil
		}
		return rpc.Refuse(errcode.Forbidden, "user %q may not %s: that needs a role of %s", user, need,
			access.Granting(access.SetOf(need), bucket))
	}}
}

// anyUser returns the role of all KV users.
func (n *Node) anyUser() route.Role {
	return route.Role{Name: "any KV user", Check: func(r *http.Request) error {
		_, err := n.caller(r)
		return err
	}}
}

// own returns the role of callers with the password of the nodes' own user.
func (n *Node) own() route.Role {
	return route.Role{Name: "the nodes' own KV user", Check: func(r *http.Request) error {
		if !n.hasPassword(r) {
			return rpc.Refuse(errcode.Unauthenticated, "the KV user and password of the nodes' configuration are required")
		}
		return nil
	}}
}

// node returns the role of other nodes, which over TLS also need a certificate.
func (n *Node) node() route.Role {
	own, node := n.own(), route.Only(tlsconf.KV)
	return route.Role{Name: own.Name + ", and a certificate of role " + node.Name, Check: func(r *http.Request) error {
		if err := own.Check(r); err != nil {
			return err
		}
		return node.Check(r)
	}}
}

// hasPassword reports whether a request carries the user and password of the configuration.
func (n *Node) hasPassword(r *http.Request) bool {
	user, password, _ := r.BasicAuth()
	return subtle.ConstantTimeCompare([]byte(user), []byte(n.config.User))&subtle.ConstantTimeCompare([]byte(password),
		[]byte(n.config.Password)) == 1
}

// caller returns the user of a request, or an error if the credentials are missing or wrong.
func (n *Node) caller(r *http.Request) (string, error) {
	user, password, shown := r.BasicAuth()
	switch {
	case n.hasPassword(r):
		return user, nil
	case !shown:
		return "", rpc.Refuse(errcode.Unauthenticated, "the KV user and password are required")
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	if err := n.checks.Enter(host); err != nil {
		return "", err
	}
	defer n.checks.Leave(host)
	u, keys := n.cluster.directory.Load().Find(user), access.Keys{Iterations: access.Iterations}
	if u != nil && user != n.config.User { // whose only password is that of the configuration
		keys = u.Keys
	}
	if !keys.Matches(password) { // takes as long if there is no such user
		return "", rpc.Refuse(errcode.Unauthenticated, "wrong KV user or password")
	}
	return user, nil
}

// callerOf returns the user of a request, whose password the route's role has checked; empty if the request has no
// credentials, which only known admits.
func callerOf(r *http.Request) string {
	user, _, _ := r.BasicAuth()
	return user
}

// seenBy returns the buckets that the user of a request may see.
func (n *Node) seenBy(r *http.Request, m clustermap.Map) (out []*clustermap.Bucket) {
	for i := range m.Buckets {
		if n.permitted(callerOf(r), m.Buckets[i].Name).Has(access.See) {
			out = append(out, &m.Buckets[i])
		}
	}
	return out
}

// rights returns what a user may do in a bucket and in parts of it.
func (n *Node) rights(user, bucket string) access.Rights {
	if user == n.config.User {
		return access.Everything()
	}
	return n.cluster.directory.Load().Rights(user, bucket)
}

// permitted returns what a user may do in a bucket or, with an empty name, in the cluster.
func (n *Node) permitted(user, bucket string) access.Set {
	if user == n.config.User {
		return access.All
	}
	return n.cluster.directory.Load().Permitted(user, bucket)
}

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

// maxChecks bounds the passwords that are checked at a time on the admin port: each takes some milliseconds of a
// processor, whoever asks.
const maxChecks = 16

type judgeKey struct{}

// judged has a request carry who may make it, so that stillMay can ask again.
func judged(x route.Route) route.Route {
	handle := x.Handle
	x.Handle = func(w http.ResponseWriter, r *http.Request) error {
		again := func() error { return x.Role.Check(r) }
		return handle(w, r.WithContext(context.WithValue(r.Context(), judgeKey{}, again)))
	}
	return x
}

// stillMay judges again whoever made the request that a context is of, once the newest users are known: the node may
// have let him in by older ones. What the node does by itself it may.
func stillMay(ctx context.Context) error {
	if again, is := ctx.Value(judgeKey{}).(func() error); is {
		return again()
	}
	return nil
}

// known is who shows a certificate, or is a KV user who may do that; without TLS also who shows nothing. A password has
// to be right wherever it is given, as what is shown may depend on the name.
func (n *Node) known(need access.Permission) route.Role {
	user, certified := n.may(need), route.Certified()
	return route.Role{Name: certified.Name + ", or " + user.Name, Check: func(r *http.Request) error {
		none := certified.Check(r)
		if _, _, shown := r.BasicAuth(); !shown {
			if none != nil {
				return rpc.Refuse(errcode.Unauthenticated, "a certificate or the KV user and password are needed: %v", none)
			}
			return nil
		}
		err := user.Check(r)
		var p *rpc.Problem
		if none == nil && r.TLS != nil && errors.As(err, &p) && p.Code == errcode.Forbidden {
			return nil // by the certificate
		}
		return err
	}}
}

// user is who may change the cluster.
func (n *Node) user() route.Role { return n.may(access.ManageCluster) }

// may is a KV user who may do something: in the bucket that the path names, where it is about a bucket. A cluster
// manager knows nobody by the certificates of our roles.
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

// anyUser is who is known.
func (n *Node) anyUser() route.Role {
	return route.Role{Name: "any KV user", Check: func(r *http.Request) error {
		_, err := n.caller(r)
		return err
	}}
}

// own is who knows the password of the nodes' own user.
func (n *Node) own() route.Role {
	return route.Role{Name: "the nodes' own KV user", Check: func(r *http.Request) error {
		if !n.hasPassword(r) {
			return rpc.Refuse(errcode.Unauthenticated, "the KV user and password of the nodes' configuration are needed")
		}
		return nil
	}}
}

// node is another node, which over TLS shows a certificate besides.
func (n *Node) node() route.Role {
	own, node := n.own(), route.Only(tlsconf.KV)
	return route.Role{Name: own.Name + ", and a certificate of role " + node.Name, Check: func(r *http.Request) error {
		if err := own.Check(r); err != nil {
			return err
		}
		return node.Check(r)
	}}
}

// hasPassword says whether a request knows user and password of the configuration.
func (n *Node) hasPassword(r *http.Request) bool {
	user, password, _ := r.BasicAuth()
	return subtle.ConstantTimeCompare([]byte(user), []byte(n.config.User))&subtle.ConstantTimeCompare([]byte(password),
		[]byte(n.config.Password)) == 1
}

// caller is the user that a request is of; an error when it is of nobody who is known.
func (n *Node) caller(r *http.Request) (string, error) {
	user, password, shown := r.BasicAuth()
	switch {
	case n.hasPassword(r):
		return user, nil
	case !shown:
		return "", rpc.Refuse(errcode.Unauthenticated, "the KV user and password are needed")
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
	if u != nil && user != n.config.User { // whose password is that of the configuration alone
		keys = u.Keys
	}
	if !keys.Know(password) { // which takes as long where there is no such user
		return "", rpc.Refuse(errcode.Unauthenticated, "wrong KV user or password")
	}
	return user, nil
}

// callerOf is the user of a request, whose password its route's role has checked; empty where none was shown, which
// known alone lets in.
func callerOf(r *http.Request) string {
	user, _, _ := r.BasicAuth()
	return user
}

// seenBy are the buckets that the user of a request may see.
func (n *Node) seenBy(r *http.Request, m clustermap.Map) (out []*clustermap.Bucket) {
	for i := range m.Buckets {
		if n.permitted(callerOf(r), m.Buckets[i].Name).Has(access.See) {
			out = append(out, &m.Buckets[i])
		}
	}
	return out
}

// rights are what a user may do in a bucket, and in parts of it.
func (n *Node) rights(user, bucket string) access.Rights {
	if user == n.config.User {
		return access.Everything()
	}
	return n.cluster.directory.Load().Rights(user, bucket)
}

// permitted is what a user may do, in a bucket or with an empty name in the cluster.
func (n *Node) permitted(user, bucket string) access.Set {
	if user == n.config.User {
		return access.All
	}
	return n.cluster.directory.Load().Permitted(user, bucket)
}

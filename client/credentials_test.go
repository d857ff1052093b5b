package client

import (
	"context"
	"iter"
	"net/http"
	"reflect"
	"testing"

	"tidemark/errcode"
	"tidemark/manager/api/v1"
)

// TestCredentialsGoWithEveryCall: each exported method that calls a server sends the user, or the token. New methods
// are covered automatically.
func TestCredentialsGoWithEveryCall(t *testing.T) {
	for name, credentials := range map[string]Options{"password": {User: "root", Password: "hunter2hunter2"},
		"token": {Token: "tmt_x"}} {
		t.Run(name, func(t *testing.T) {
			s, url := serve(t, refuse(http.StatusForbidden, errcode.Forbidden))
			credentials.Servers = []string{url}
			c := Open(credentials)
			silent(c)
			t.Cleanup(c.Close)
			v, context := reflect.ValueOf(c), reflect.TypeFor[context.Context]()
			called := 0
			for i := range v.NumMethod() {
				m := v.Type().Method(i)
				if m.Type.NumIn() < 2 || m.Type.In(1) != context || m.Name == "WaitReady" { // without an index it calls no server
					continue
				}
				before := len(s.requests())
				callWithZeros(t, m.Name, v.Method(i))
				all := s.requests()
				if called++; len(all) == before {
					t.Errorf("%s sends no request", m.Name)
				}
				for _, r := range all[before:] {
					if r.Header.Get("Authorization") == "" {
						t.Errorf("%s: %s %s without credentials", m.Name, r.Method, r.URL.Path)
					}
				}
			}
			if called < 30 {
				t.Errorf("only %d methods were called", called)
			}
		})
	}
}

// callWithZeros calls a method with a context and zero values, and consumes what it yields.
func callWithZeros(t *testing.T, name string, f reflect.Value) {
	in := []reflect.Value{reflect.ValueOf(t.Context())}
	for i := 1; i < f.Type().NumIn(); i++ {
		in = append(in, reflect.Zero(f.Type().In(i)))
	}
	if name == "Aggregate" { // which requires a grouping, or calls no server
		in[2] = reflect.ValueOf(v1.ScanRequest{GroupBy: []int{0}})
	}
	call := f.Call
	if f.Type().IsVariadic() {
		call = f.CallSlice
	}
	for _, out := range call(in) {
		switch yielded := out.Interface().(type) {
		case iter.Seq2[WatchEvent, error]:
			for range yielded {
				break
			}
		case iter.Seq2[Page, error]:
			for range yielded {
				break
			}
		}
	}
}

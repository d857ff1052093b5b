package kv

import (
	"encoding/json"
	"errors"
	"net/http"

	"tidemark/errcode"
	"tidemark/internal/rpc"
)

// maxForm bounds a form of a few names.
const maxForm = 4 << 10

// readForm reads the form that is a request's body, of either kind. All of it is kept in memory: its route bounds it.
func readForm(r *http.Request) error {
	err := r.ParseForm()
	if err == nil {
		err = r.ParseMultipartForm(maxForm)
	}
	var unread *rpc.Problem
	switch {
	case err == nil, errors.Is(err, http.ErrNotMultipart):
		return nil
	case errors.As(err, &unread):
		return unread
	}
	return rpc.Refuse(errcode.BadRequest, "the body is no form: %v", err)
}

// formError answers with an error in the form that SDKs read.
func formError(w http.ResponseWriter, status int, field, detail string) error {
	return formErrors(w, status, map[string]string{field: detail})
}

// formErrors answers with several errors in the form that SDKs read.
func formErrors(w http.ResponseWriter, status int, wrong map[string]string) error {
	body, err := json.Marshal(map[string]map[string]string{"errors": wrong})
	if err != nil {
		return err
	}
	write(w, status, rpc.MediaJSON, body)
	return nil
}

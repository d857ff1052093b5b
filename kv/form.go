package kv

import (
	"encoding/json"
	"errors"
	"net/http"

	"tidemark/errcode"
	"tidemark/internal/rpc"
)

// maxForm bounds the bytes of a form with a few names.
const maxForm = 4 << 10

// readForm reads the form in a request's body, URL-encoded or multipart. It keeps all of it in memory; the route
// bounds its size.
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
	return rpc.Refuse(errcode.BadRequest, "the body is not a form: %v", err)
}

// formError answers with an error in the format that SDKs read.
func formError(w http.ResponseWriter, status int, field, detail string) error {
	return formErrors(w, status, map[string]string{field: detail})
}

// formErrors answers with several errors in the format that SDKs read.
func formErrors(w http.ResponseWriter, status int, wrong map[string]string) error {
	body, err := json.Marshal(map[string]map[string]string{"errors": wrong})
	if err != nil {
		return err
	}
	write(w, status, rpc.MediaJSON, body)
	return nil
}

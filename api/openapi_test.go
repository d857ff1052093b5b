package api

import (
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
)

// TestContractIsOpenAPI: the document is what the specification allows.
func TestContractIsOpenAPI(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromData(OpenAPI())
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Error(err)
	}
	if !doc.IsOpenAPI31OrLater() {
		t.Errorf("version %s", doc.OpenAPI)
	}
}

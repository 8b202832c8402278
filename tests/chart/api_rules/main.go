// The rules of Kubernetes' API server for new objects, without a server, which takes an hour to
// build: each object of standard input (YAML) is decoded, gets its defaults, and is validated by the
// code that the server calls. Prints what it refuses or warns of; the exit code is then 1.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"
	"k8s.io/kubernetes/pkg/registry/batch/cronjob"
	"k8s.io/kubernetes/pkg/registry/networking/networkpolicy"
	"k8s.io/kubernetes/pkg/registry/policy/poddisruptionbudget"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrole"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"
)

var strategies = map[string]rest.RESTCreateStrategy{
	"StatefulSet":         statefulset.Strategy,
	"CronJob":             cronjob.Strategy,
	"NetworkPolicy":       networkpolicy.Strategy,
	"PodDisruptionBudget": poddisruptionbudget.Strategy,
	"ClusterRole":         clusterrole.Strategy,
	"ClusterRoleBinding":  clusterrolebinding.Strategy,
}

// The strategies of these would need large parts of the server: only their rules are called.
func validate(object runtime.Object) (field.ErrorList, bool) {
	switch object := object.(type) {
	case *core.ConfigMap:
		return validation.ValidateConfigMap(object), true
	case *core.PersistentVolumeClaim:
		options := validation.PersistentVolumeClaimSpecValidationOptions{}
		return validation.ValidatePersistentVolumeClaim(object, options), true
	case *core.Pod:
		return validation.ValidatePodCreate(object, validation.PodValidationOptions{}), true
	case *core.Secret:
		return validation.ValidateSecret(object), true
	case *core.Service:
		// The server takes an address first.
		if object.Spec.ClusterIP == "" {
			object.Spec.ClusterIP = "10.0.0.1"
		}
		object.Spec.ClusterIPs = []string{object.Spec.ClusterIP}
		return validation.ValidateServiceCreate(object), true
	case *core.ServiceAccount:
		return validation.ValidateServiceAccount(object), true
	}
	return nil, false
}

func check(data []byte) error {
	object, kind, err := legacyscheme.Codecs.UniversalDecoder().Decode(data, nil, nil)
	if err != nil {
		return err
	}
	internal, err := legacyscheme.Scheme.UnsafeConvertToVersion(object, runtime.InternalGroupVersioner)
	if err != nil {
		return err
	}
	accessor, err := meta.Accessor(internal)
	if err != nil {
		return err
	}
	rest.FillObjectMetaSystemFields(accessor)
	strategy, ok := strategies[kind.Kind]
	if !ok || strategy.NamespaceScoped() {
		accessor.SetNamespace("shop")
	}
	if !ok {
		refused, known := validate(internal)
		if !known {
			return fmt.Errorf("no rules for kind %s", kind.Kind)
		}
		return refused.ToAggregate()
	}
	ctx := request.WithNamespace(context.Background(), accessor.GetNamespace())
	ctx = request.WithRequestInfo(ctx, &request.RequestInfo{
		APIGroup: kind.Group, APIVersion: kind.Version, Verb: "create",
	})
	if err := rest.BeforeCreate(strategy, ctx, internal); err != nil {
		return err
	}
	for _, warning := range strategy.WarningsOnCreate(ctx, internal) {
		return fmt.Errorf("warning: %s", warning)
	}
	return nil
}

func main() {
	documents := yaml.NewYAMLReader(bufio.NewReader(os.Stdin))
	refused, number := 0, 0
	for {
		data, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = check(data)
		}
		number++
		if err != nil {
			refused++
			fmt.Printf("object %d: %v\n", number, err)
		}
	}
	fmt.Printf("%d objects, %d refused\n", number, refused)
	if refused > 0 {
		os.Exit(1)
	}
}

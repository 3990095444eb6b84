// Upstream's kubectl from its published modules, for machines whose package is too old for
// `wait --for=jsonpath` and `apply --validate=strict`. Built by `cargo xtask setup`.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"

	_ "k8s.io/client-go/plugin/pkg/client/auth"
)

func main() {
	os.Exit(cli.Run(cmd.NewDefaultKubectlCommand()))
}

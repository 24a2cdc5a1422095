// Command apiserver is what the demo needs of a control plane where it cannot
// be fetched: etcd and kube-apiserver in one binary. It compiles a quarter
// fewer packages than dev/controlplane, which builds on what it compiled.
//
// It runs the program whose name it was started by (a symlink).
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	switch filepath.Base(os.Args[0]) {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
	default:
		fmt.Fprintln(os.Stderr, "this program runs as etcd or as kube-apiserver")
		os.Exit(2)
	}
}

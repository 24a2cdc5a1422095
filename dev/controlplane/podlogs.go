package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// What a simulated pod's annotations say about its log.
const (
	logAnnotation   = "dev.tarsy.dev/log"
	crashAnnotation = "dev.tarsy.dev/crash"

	healthyLog = "server starting\nlistening on 0.0.0.0:8080\nready\n"
	crashLog   = "server starting\nreading configuration from the environment\n" +
		"fatal: DATABASE_URL is not set\nexit status 1\n"
)

// podLogs answers `kubectl logs` in the place of a kubelet. The text comes from the pod's annotation, the times from
// its status, so that a crash-looping pod has a log of each of its lives. kwok serves logs too, but from files that
// are chosen by namespace and container name when it starts; here the test that makes the pod says what it logs.
type podLogs struct{ client kubernetes.Interface }

func runPodLogs() int {
	flags := flag.NewFlagSet("podlogs", flag.ExitOnError)
	address := flags.String("listen", "", "HOST:PORT")
	kubeconfig := flags.String("kubeconfig", "", "how to reach the API server")
	cert := flags.String("tls-cert-file", "", "certificate to serve with")
	key := flags.String("tls-private-key-file", "", "its key")
	clientCA := flags.String("client-ca-file", "", "authority of the clients that may read logs")
	_ = flags.Parse(os.Args[1:]) // ExitOnError
	if err := servePodLogs(*address, *kubeconfig, *cert, *key, *clientCA); err != nil {
		fmt.Fprintln(os.Stderr, "podlogs:", err)
		return 1
	}
	return 0
}

func servePodLogs(address, kubeconfig, cert, key, clientCA string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	pem, err := os.ReadFile(clientCA)
	if err != nil {
		return err
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s: no certificate in it", clientCA)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /containerLogs/{namespace}/{pod}/{container}", podLogs{client})
	server := &http.Server{
		Addr:      address,
		Handler:   mux,
		TLSConfig: &tls.Config{ClientCAs: authorities, ClientAuth: tls.RequireAndVerifyClientCert},
	}
	ctx := signalContext()
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServeTLS(cert, key); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (s podLogs) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var options v1.PodLogOptions
	if err := legacyscheme.ParameterCodec.DecodeParameters(r.URL.Query(), v1.SchemeGroupVersion, &options); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	pod, err := s.client.CoreV1().Pods(r.PathValue("namespace")).Get(r.Context(), r.PathValue("pod"), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	} else if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	started, running, err := life(pod, r.PathValue("container"), options.Previous)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_, _ = w.Write(cut(logText(pod), started, &options))
	if options.Follow && running {
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
}

// logText is what one life of the pod's container writes.
func logText(pod *v1.Pod) string {
	if text := pod.Annotations[logAnnotation]; text != "" {
		return text
	}
	if pod.Annotations[crashAnnotation] == "true" {
		return crashLog
	}
	return healthyLog
}

// life says when the wanted life of a container began and whether it lasts; the errors are the kubelet's words.
func life(pod *v1.Pod, container string, previous bool) (time.Time, bool, error) {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name != container {
			continue
		}
		last := status.LastTerminationState.Terminated
		switch now := status.State; {
		case previous && last == nil:
			return time.Time{}, false, fmt.Errorf("previous terminated container %q in pod %q not found", container, pod.Name)
		case !previous && now.Running != nil:
			return now.Running.StartedAt.Time, true, nil
		case last != nil:
			return last.StartedAt.Time, false, nil
		case now.Waiting != nil && now.Waiting.Reason == "ImagePullBackOff":
			return time.Time{}, false, fmt.Errorf(
				"container %q in pod %q is waiting to start: trying and failing to pull image", container, pod.Name)
		case now.Waiting != nil:
			return time.Time{}, false, fmt.Errorf(
				"container %q in pod %q is waiting to start: %s", container, pod.Name, now.Waiting.Reason)
		}
	}
	return time.Time{}, false, fmt.Errorf("container %q in pod %q is not available", container, pod.Name)
}

// cut applies the options of `kubectl logs` to a text whose lines are a millisecond apart.
func cut(text string, started time.Time, options *v1.PodLogOptions) []byte {
	since := time.Time{}
	if options.SinceSeconds != nil {
		since = time.Now().Add(-time.Duration(*options.SinceSeconds) * time.Second)
	} else if options.SinceTime != nil {
		since = options.SinceTime.Time
	}
	var lines []string
	for i, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		at := started.Add(time.Duration(i) * time.Millisecond)
		if at.Before(since) {
			continue
		}
		if options.Timestamps {
			line = at.UTC().Format(time.RFC3339Nano) + " " + line
		}
		lines = append(lines, line+"\n")
	}
	if tail := options.TailLines; tail != nil && int(*tail) < len(lines) {
		lines = lines[len(lines)-int(*tail):]
	}
	whole := []byte(strings.Join(lines, ""))
	if limit := options.LimitBytes; limit != nil && int(*limit) < len(whole) {
		whole = whole[:*limit]
	}
	return whole
}

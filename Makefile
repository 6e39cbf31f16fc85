# The steps of .ci/run, one target each.
STEPS := fmt vet tidy lint api weight test race soak fuzz examples interop bench

.PHONY: all $(STEPS)

all:
	.ci/run

$(STEPS):
	.ci/run $@

// Standard headers of the kernels, included before any instruction set is switched on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

#include "design.h"
#include "kernels.h"
#include "plans.h"
#include "radices.h"
#include "signal.h"
#include "workspace.h"

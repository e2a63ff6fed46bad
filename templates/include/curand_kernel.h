/* In place of cuRAND's header, which nvcc's packages come without: CUTLASS's attention kernel names it for
 * its dropout, which is not compiled here. */
#pragma once

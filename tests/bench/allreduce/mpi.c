/* All-reduce of MPI, in place, one iteration right after the other; like gloo.py beside it. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int order(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank, iters = atoi(getenv("ITERS")), warm = atoi(getenv("WARM"));
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  char *sizes = strdup(getenv("SIZES"));
  double *times = malloc(iters * sizeof *times), *slowest = malloc(iters * sizeof *slowest);
  for (char *word = strtok(sizes, " "); word; word = strtok(NULL, " ")) {
    size_t bytes = strtoull(word, NULL, 10), count = bytes / sizeof(float);
    float *x = malloc(bytes);
    for (size_t i = 0; i < count; i++) x[i] = 1;
    for (int i = 0; i < warm; i++)
      MPI_Allreduce(MPI_IN_PLACE, x, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < iters; i++) {
      double began = MPI_Wtime();
      MPI_Allreduce(MPI_IN_PLACE, x, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      times[i] = MPI_Wtime() - began;
    }
    MPI_Reduce(times, slowest, iters, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
      qsort(slowest, iters, sizeof *slowest, order);
      printf("%zu %f\n", bytes, slowest[iters / 2] * 1e6);
      fflush(stdout);
    }
    free(x);
  }
  MPI_Finalize();
  return 0;
}

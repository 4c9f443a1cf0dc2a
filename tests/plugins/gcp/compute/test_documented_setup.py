"""The commands that docs/gcp.md tells a user to run, on a project that is set up."""

from urllib.parse import urlsplit

from support.clouds.documented_setup import documented_commands
from support.clouds.gcloud_command_line import Gcloud

PROJECT = "my-project-123"


class Asked:
    """Notes what gcloud asks, and answers as a project with one policy each does."""

    def __init__(self):
        self.made = []

    def __call__(self, method, url, json=None):
        if method != "GET" and ":getIamPolicy" not in url:
            self.made.append((urlsplit(url).path, json))
        return {"etag": "a", "bindings": []}


def test_the_documented_commands_let_machines_drive_and_read_what_a_driver_printed():
    asked = Asked()
    gcloud = Gcloud(asked, project=PROJECT)
    for arguments in documented_commands("docs/gcp.md", "gcloud", {"PROJECT": PROJECT}):
        gcloud.run(arguments)
    node = f"cloudspot-node@{PROJECT}.iam.gserviceaccount.com"
    bound = {url: json["policy"]["bindings"] for url, json in asked.made if url.endswith(":setIamPolicy")}
    assert bound == {
        f"/v1/projects/{PROJECT}:setIamPolicy": [
            {
                "role": f"projects/{PROJECT}/roles/cloudspot_nodes_drive",
                "members": [f"serviceAccount:{node}"],
            }
        ],
        f"/v1/projects/{PROJECT}/serviceAccounts/{node}:setIamPolicy": [
            {"role": "roles/iam.serviceAccountUser", "members": [f"serviceAccount:{node}"]}
        ],
    }
    (role,) = [json["role"] for url, json in asked.made if url.endswith("/roles")]
    assert role["title"] == "cloudspot driver"
